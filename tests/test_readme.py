"""The README is true: its commands run, its block works, its table and its pictures are there."""

import re
import shlex
from pathlib import Path

import pytest

from hymo import registry
from hymo.cli.app import app
from hymo.recipe import load_recipe
from hymo.testing import FfnContract

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]


def test_make_run_is_hymo_run_on_the_shipped_recipe():
    assert COMMANDS[0] == "make run"
    makefile = (ROOT / "Makefile").read_text()
    assert "\nRECIPE ?= recipes/v1_0.yaml\n" in makefile
    assert "\n\t$(BIN)/hymo run $(RECIPE) $(ARGS)\n" in makefile


@pytest.mark.parametrize("command", [*COMMANDS[1:], f"hymo run {ROOT}/recipes/v1_0.yaml"])
def test_every_command_runs(hymo, small, command):
    program, verb, *words = shlex.split(command)
    assert program in ("hymo", ".venv/bin/hymo")
    if verb == "run":
        words = [*(word for word in words if word not in ("--scale", "tiny")), *small, "run.tracking=none"]
    if verb == "ablate":  # hours of computing in a recipe's own words: priced here, run in tests/ablate
        words = [*words, "--scale", "tiny", "--dry-run"]
    found = hymo(verb, *words)
    assert found.code == 0, found.err
    assert found.out


@pytest.fixture(scope="module")
def relu2(tmp_path_factory):
    before = dict(registry._blocks)
    file = tmp_path_factory.mktemp("block") / "relu2.py"
    file.write_text(blocks("python")[0])
    registry.discover([file])
    yield file
    registry._blocks.clear()
    registry._blocks.update(before)


def test_the_block_of_the_readme_trains(hymo, small, relu2):
    found = hymo("run", *small, "run.tracking=none", "--allow-code", f"blocks=[{relu2}]", "model.layers.G.ffn={type: relu2}")
    assert found.code == 0, found.err
    assert "finished after 4 steps" in found.out


class TestRelu2(FfnContract):
    configs = {"default": {"type": "relu2"}}

    @pytest.fixture(autouse=True)
    def registered(self, relu2):
        return relu2


def test_the_recipe_of_the_readme_is_what_ships(tmp_path):
    text, _ = blocks("yaml")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(text)
    shipped, mine = load_recipe("v1_0").model, load_recipe(recipe).model
    assert mine.pattern == shipped.pattern
    assert {name: (layer.mixer.type, layer.ffn.type) for name, layer in mine.layers.items()} == {"M": ("mla", "moe"), "G": ("gdn", "none")}


def test_the_experiment_of_the_readme_is_priced(hymo, tmp_path):
    _, text = blocks("yaml")
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / "ablation.yaml").write_text(text)
    found = hymo("ablate", str(tmp_path / "heads"), "--scale", "tiny", "--dry-run")
    assert found.code == 0, found.err
    assert "n_kv_groups: 2 → 1" in found.out


def test_the_number_of_experiments_is_true():
    assert "twenty-four ship" in README
    assert len(list((ROOT / "experiments").glob("*/ablation.yaml"))) == 24


def test_the_table_names_every_command_and_no_other():
    told = set(re.findall(r"^\| .*", README, flags=re.MULTILINE))
    named = {name for row in told for name in re.findall(r"`hymo ([a-z-]+)", row)}
    assert named == set(app_commands())


def app_commands() -> list[str]:
    from typer.main import get_command

    return list(get_command(app).commands)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_what_it_links_to_is_there(path):
    assert (ROOT / path).exists()


def test_what_the_pages_make_can_be_made():
    makefile = (ROOT / "Makefile").read_text()
    pages = [README, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    targets = {target for page in pages for target in re.findall(r"`?make ([a-z]+)\b`?", page) if f"`make {target}`" in page}
    assert {"faults", "fuzz", "soak", "test"} <= targets
    assert all(f"\n{target}: " in makefile for target in targets)
