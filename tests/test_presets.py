"""The shipped stacks of other mixers, held to v1_0's size, and the recipes of synthetic tasks, whose own commands are tried."""

import re
import shlex

import pytest

from hymo.cli.common import split_words
from hymo.cost import count
from hymo.data import open_data
from hymo.recipe import load_recipe, resolve_stack, scales, shipped

MIXERS = {
    "qwen3_next": ["attention", *["gated_deltanet"] * 3] * 8,
    "kimi_linear": ["mla", *["kda"] * 3] * 8,
    "pure_attention": ["attention"] * 32,
    "pure_gdn": ["gdn"] * 32,
}


@pytest.mark.parametrize("name", MIXERS)
def test_nothing_but_the_mixers_differs(name):
    base, own = load_recipe("v1_0"), load_recipe(name)
    assert [layer.mixer.type for layer in resolve_stack(own.model)] == MIXERS[name]
    assert [layer.ffn for layer in resolve_stack(own.model)] == [layer.ffn for layer in resolve_stack(base.model)]
    changed = {"layers", "rope"} if name == "kimi_linear" else {"layers"}
    assert own.model.model_copy(update={key: getattr(base.model, key) for key in changed}) == base.model
    assert own.model_copy(update={"name": base.name, "model": base.model}) == base


def test_kimi_linear_rotates_nothing_and_qwen3_next_a_quarter():
    kimi, qwen = load_recipe("kimi_linear"), load_recipe("qwen3_next")
    assert kimi.model.rope.type == "none"
    assert kimi.model.layers["M"].mixer.rope is None
    mixer = qwen.model.layers["M"].mixer
    assert (mixer.rope_dim * 4, mixer.output_gate) == (mixer.head_dim, True)


@pytest.mark.parametrize(("name", "scale"), [(name, scale) for name in MIXERS for scale in ("full", *scales(name))])
def test_active_parameters_are_v1_0s(name, scale):
    own, base = count(load_recipe(name, scale=scale)).active, count(load_recipe("v1_0", scale=scale)).active
    assert own == pytest.approx(base, rel=0.02 if scale == "tiny" else 0.01)


@pytest.mark.parametrize("name", MIXERS)
def test_the_count_that_the_recipe_states(name):
    stated = re.search(r"^# ([0-9,]+) active parameters against 434,454,144", (shipped.folder() / f"{name}.yaml").read_text(), re.MULTILINE)
    assert stated is not None
    assert count(load_recipe(name)).active == int(stated[1].replace(",", ""))


TEXTS = [(shipped.folder() / f"{name}.yaml").read_text() for name in ("mqar", "mad")]
COMMANDS = [line for text in TEXTS for line in re.findall(r"^#   hymo run (.*)$", text, re.MULTILINE)]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_the_recipes_of_tasks(command):
    words = shlex.split(command, comments=True)
    scale = words.pop(words.index("--scale") + 1) if "--scale" in words else None
    name, overrides = split_words([word for word in words if word != "--scale"])
    recipe = load_recipe(name, overrides, scale=scale)
    batch = open_data(recipe).train().take(2)
    assert batch.labels().max() < recipe.model.vocab_size
    assert count(recipe).stored > 0


@pytest.mark.parametrize("task", ["in_context_recall", "noisy_recall", "fuzzy_recall", "selective_copying", "memorization", "compression"])
def test_every_mad_task_fits_its_recipe(task):
    for scale in ("full", "mini"):
        data = open_data(load_recipe("mad", [f"data.source=synthetic:{task}"], scale=scale))
        assert (next(iter(data.validation(4))).labels() >= 0).any(dim=1).all()


def test_full_mad_is_two_hundred_epochs_and_full_mqar_thirty_two():
    for name, epochs in (("mad", 200), ("mqar", 32)):
        recipe = load_recipe(name)
        rows = recipe.train.steps * recipe.train.tokens_per_step / recipe.train.seq_len
        assert rows / recipe.data.options["examples"] == recipe.data.max_epochs == epochs
