"""Every experiment that ships resolves, prices and runs two steps at the smallest scale, and says what it is about."""

import functools
import math
import re

import pytest
import torch

from hymo.ablate import price
from hymo.ablate.definition import folder, load, shipped
from hymo.ablate.plan import make_plan
from hymo.recipe import fingerprint
from hymo.train import train

QUICK = [
    "run.tracking=none",
    "train.steps=2",
    "train.seq_len=32",
    "train.tokens_per_step=64",
    "eval.tokens=32",
    "eval.every=2",
    "run.checkpoint_every=2",
]


@pytest.fixture(scope="module")
def run_once(tmp_path_factory):
    """run(recipe) -> held-out loss after its steps; a recipe that several experiments share is run once."""
    recipes = {}

    @functools.cache
    def trained(key):
        result = train(recipes[key], run_dir=tmp_path_factory.mktemp("run"))
        assert result.status == "finished"
        return result.validation[-1][1]

    def run(recipe):
        recipes[fingerprint(recipe)] = recipe
        return trained(fingerprint(recipe))

    return run


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_experiment_resolves_prices_and_runs(name, run_once):
    plan = make_plan([load(name)], scale="tiny", seeds=2, overrides=QUICK)
    definition = plan.experiments[0].definition
    assert definition.margin > 0
    assert definition.delta_min > 0
    assert all(not any("also moves" in note for note in arm.notes) for arm in plan.arms), "a shipped arm moves its factor and nothing else"
    assert all(arm.changes for arm in plan.arms)
    prices = price.price(plan, torch.device("cpu"), per_flop=1e-9)
    whole = price.total(plan, prices, jobs=2)
    assert min(whole.bytes, whole.seconds, whole.disk) > 0
    for arm in (plan.baseline, *plan.arms):
        assert math.isfinite(run_once(arm.recipe)), arm.label


@pytest.mark.parametrize("scale", ["medium", "full"])
@pytest.mark.parametrize("name", [name for name in shipped() if load(name).definition.base == "v1_0"])
def test_a_shipped_experiment_resolves_where_ci_cannot_run_it(name, scale):
    arms = make_plan([load(name)], scale=scale, seeds=2).arms
    assert all(arm.changes for arm in arms)


def test_an_experiments_page_names_only_arms_and_commands_that_are():
    for page in folder().glob("*/README.md"):
        text, definition = page.read_text(), load(page.parent.name).definition
        told = set(re.findall(r"^\| (\w+) \|", text, flags=re.MULTILINE)) - {"arm"}
        assert told
        assert told <= set(definition.arms), page
        for words in re.findall(r"^    hymo ablate (.*)$", text, flags=re.MULTILINE):
            name, *options = words.split()
            assert name == page.parent.name
            arms = options[options.index("--arms") + 1].split(",") if "--arms" in options else ()
            make_plan([load(name)], scale=options[options.index("--scale") + 1], seeds=2, only=arms, overrides=[w for w in options if "=" in w])
