import json

from hymo.cost import count
from hymo.facts import DIGEST_LIMIT, PARAM_LIMIT, describe, flatten
from hymo.recipe import load_recipe, to_dict
from hymo.train.tracker import RunStart

START = RunStart(step=0, steps=20, facts={"device": "cpu", "world": 1}, data={"source": "builtin", "fingerprint": "ab" * 40, "train_tokens": 1000})


def test_every_leaf_of_the_recipe_is_a_parameter():
    recipe = load_recipe("v1_0", scale="tiny")
    found = dict(flatten(recipe))
    assert found["model.d_model"] == "32"
    assert found["model.layers.M.mixer.n_heads"] == "4"
    assert found["model.mtp.weights"] == "[0.3, 0.1]"
    assert found["optimizer.adamw.lr"] == str(recipe.optimizer.adamw.lr)
    assert "train.tokens" not in found  # not set

    def leaves(value):
        return sum(map(leaves, value.values())) if isinstance(value, dict) and value else value is not None

    assert len(found) == leaves(to_dict(recipe))


def test_a_parameter_too_long_for_mlflow_is_cut():
    recipe = load_recipe("v1_0", ["data.source=" + "x" * 7000], scale="tiny")
    assert dict(flatten(recipe))["data.source"] == "x" * PARAM_LIMIT


def test_names_are_ones_that_mlflow_takes():
    recipe = load_recipe("v1_0", ['model.overrides={"1,3": {mixer: {rope: none}}}'], scale="tiny")
    assert dict(flatten(recipe))["model.overrides.1/3.mixer.rope"] == "none"


def test_cost_place_and_data_are_told():
    recipe = load_recipe("v1_0", scale="tiny")
    cost, found = count(recipe), describe(recipe, START)
    assert found.metrics["cost/params_active"] == cost.active
    assert found.metrics["cost/flops_per_token_train"] == cost.flops_per_token_train
    assert found.tags["run.device"] == "cpu"
    assert found.tags["env.torch"]
    note = found.tags["mlflow.note.content"]
    assert note == f"`MGGG*2`, {cost.active:,} parameters active of {cost.stored:,}, 20 steps of 256 tokens from builtin, seed 0."
    assert found.dataset is not None
    assert found.dataset["name"] == "builtin"
    assert found.dataset["digest"] == ("ab" * 40)[:DIGEST_LIMIT]
    assert json.loads(found.dataset["profile"]) == START.data
