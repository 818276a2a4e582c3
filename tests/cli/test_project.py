import json

import pytest

from hymo.ablate.definition import folder as experiments_folder
from hymo.cli.project import CHECKS, first_sentence
from hymo.recipe import load_recipe, scales, shipped_recipes
from hymo.registry import names


def test_init_copies_recipes_and_experiments_that_load(hymo, tmp_path):
    found = hymo("init", "mine")
    assert found.code == 0, found.err
    mine = tmp_path / "mine"
    assert sorted(path.stem for path in (mine / "recipes").glob("*.yaml")) == shipped_recipes()
    assert load_recipe(mine / "recipes" / "v1_0.yaml") == load_recipe("v1_0")
    shipped = sorted(path.parent.name for path in experiments_folder().glob("*/ablation.yaml"))
    assert sorted(path.parent.name for path in (mine / "experiments").glob("*/ablation.yaml")) == shipped
    assert json.loads((mine / "recipe.schema.json").read_text())["properties"]


def test_init_overwrites_nothing(hymo, tmp_path):
    (tmp_path / "recipes").mkdir()
    found = hymo("init")
    assert found.code == 2
    assert "must not overwrite anything, but 'recipes' exists" in found.err
    assert list(tmp_path.iterdir()) == [tmp_path / "recipes"]


def test_blocks_are_listed_by_kind(hymo):
    rows = [json.loads(line) for line in hymo("blocks", "list", "--json").out.splitlines()]
    assert [row["name"] for row in rows if row["kind"] == "mixer"] == names("mixer")
    assert all(row["does"] for row in rows)
    assert "mla" in hymo("blocks", "list").out


def test_recipes_are_listed_with_their_scales(hymo):
    rows = {row["name"]: row for row in map(json.loads, hymo("recipes", "list", "--json").out.splitlines())}
    assert sorted(rows) == shipped_recipes()
    assert rows["v1_0"]["scales"].split(", ") == [*scales("v1_0"), "full"]


@pytest.mark.parametrize("family", ["blocks", "recipes"])
def test_a_family_alone_is_its_list(hymo, family):
    assert hymo(family) == hymo(family, "list")
    assert hymo(family, "--json") == hymo(family, "list", "--json")
    assert hymo(family).code == 0
    assert "Usage" in hymo(family, "--help").out
    assert hymo(family, "lst").code == 2


def test_doctor_finds_a_sound_machine_sound(hymo, monkeypatch, store):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    found = hymo("doctor")
    assert found.code == 0, found.out
    assert [line.split()[:2] for line in found.out.splitlines()] == [["ok", name] for name in CHECKS]


def test_doctor_says_what_is_missing(hymo, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HYMO_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/file/mlflow.db")
    found = hymo("doctor")
    assert found.code == 2
    assert [line.split()[1] for line in found.out.splitlines() if line.startswith("NO ")] == ["data", "tracking"]
    assert found.err == "hymo: everything above must be ok, but 2 of 8 are not; each line says what is missing\n"


@pytest.mark.parametrize(("doc", "line"), [(None, ""), ("One.\n\nTwo.", "One.")])
def test_the_first_line_of_a_docstring(doc, line):
    assert first_sentence(doc) == line
