"""Random recipes from the registry: valid ones are counted exactly, cost what the built model shows, and train; damaged ones say why, in one line."""

import copy
from typing import Any

import torch
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

from hymo.cost import count, memory
from hymo.data import Batch
from hymo.errors import HymoError
from hymo.model import build_hymo
from hymo.recipe import Recipe, dump, fingerprint, recipe_from_dict, resolve_stack, to_dict
from hymo.recipe.reading import read_text
from hymo.train.feed import Fed
from hymo.train.optimizer import Optimizers
from hymo.train.parallel import World
from hymo.train.schedule import WSD, rows_per_step, total_steps
from hymo.train.spike import SpikeWatch
from hymo.train.step import Stepper
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.recipes import raw_recipes, recipes

CPU = torch.device("cpu")


def sizes(module: torch.nn.Module | None) -> int:
    return sum(p.numel() for p in module.parameters()) if module is not None else 0


@fuzz(4, 500, recipe=recipes)
def test_the_cost_model_counts_what_the_built_model_holds(recipe: Recipe) -> None:
    cost, model, length = count(recipe), build_hymo(recipe), recipe.train.seq_len
    assert cost.stored == sizes(model) == sum(row.stored for row in cost.components)
    assert cost.active == sum(row.active for row in cost.components) <= cost.stored
    assert [layer.stored for layer in cost.layers] == [sizes(layer) for layer in model.layers]
    parts = memory(recipe, 1, "cpu")
    assert parts["weights"] == 4 * sizes(model)
    assert parts["gradients"] == 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert cost.flops_per_token_train_square >= cost.flops_per_token_train == 3 * cost.flops_per_token_forward > 0
    model.eval()
    _, state = model.step(torch.zeros(2, length, dtype=torch.int64), model.initial_state(2))
    kept = [sum(leaf.numel() for leaf in tree_leaves(layer) if isinstance(leaf, torch.Tensor)) // 2 for layer in state.layers]
    assert [layer.cache_elems + layer.state_elems for layer in cost.layers] == kept


@fuzz(4, 500, recipe=recipes, data=st.data())
def test_a_valid_recipe_trains(recipe: Recipe, data: st.DataObject) -> None:
    """One step on packed rows with padding: every number finite, something moved, nothing that takes no gradient."""
    rows, train = rows_per_step(recipe.train), recipe.train
    model = build_hymo(recipe)
    optimizers = Optimizers(model, recipe.optimizer)
    watch = SpikeWatch(train.spike_sigma, train.spike_window, CPU) if train.spike_sigma else None
    assert isinstance(train.micro_batch, int)
    dtype = torch.bfloat16 if train.dtype == "bf16" else torch.float32
    stepper = Stepper(model, optimizers, WSD(recipe.schedule, total_steps(train)), World(CPU), dtype, train.micro_batch, recipe.optimizer.grad_clip,
                      restore_on_bad=train.on_bad_loss == "skip", spikes=watch)
    ends = data.draw(st.lists(st.integers(1, train.seq_len + 1), max_size=3, unique=True))
    numbers = torch.bucketize(torch.arange(train.seq_len + 1), torch.tensor(sorted(ends)), right=True)
    padding = data.draw(st.sampled_from([0, 0, 3]))
    numbers[len(numbers) - padding:] = -1
    tokens = torch.randint(257, (rows, train.seq_len + 1), generator=torch.Generator().manual_seed(recipe.run.seed % 1000))
    batch = Batch(tokens, numbers.int().expand(rows, -1))
    counts = torch.stack([(batch.labels(k) != -100).sum() for k in range(len(model.mtp_weights) + 1)]).float()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    values = stepper(Fed(batch, counts, {}, 0), 0, False).read()
    assert all(torch.isfinite(torch.tensor(value)) for value in values.values()), values
    assert values["bad"] == 0
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert "embedding.weight" in moved or not counts[0]
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@fuzz(10, 500, raw=raw_recipes())
def test_a_recipe_written_out_is_the_same_recipe(raw: dict[str, Any]) -> None:
    recipe = recipe_from_dict(raw)
    again = recipe_from_dict(read_text(dump(recipe), None).value)
    assert again == recipe
    assert fingerprint(again) == fingerprint(recipe)
    assert [layer.info.name for layer in resolve_stack(again.model)] == [layer.info.name for layer in resolve_stack(recipe.model)]


WORDS = st.sampled_from(["", "none", "mla", "gdn", "moe", "rope", "MG*9999", "A*3", "../x", "é\u202e", "1e5", "auto"]) | st.text(max_size=6)
NUMBERS = st.sampled_from([0, -1, 3, 7, 2**24, 2**31, 10**30]) | st.integers() | st.floats()
KEYS = st.sampled_from(["type", "mixer", "ffn", "rope", "0", "all", "A"]) | st.text(max_size=4)
JUNK = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=5
)


def places(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of a mapping of mappings."""
    if not isinstance(value, dict):
        return []
    return [(*path, key) for key in value] + [place for key, inner in value.items() for place in places(inner, (*path, key))]


@fuzz(20, 2000, raw=raw_recipes(), data=st.data())
def test_a_damaged_recipe_is_refused_in_one_line_or_can_be_built(raw: dict[str, Any], data: st.DataObject) -> None:
    whole = copy.deepcopy(to_dict(recipe_from_dict(raw)))
    for _ in range(data.draw(st.integers(1, 2))):
        *above, key = data.draw(st.sampled_from(places(whole)))
        node: Any = whole
        for step in above:
            node = node[step]
        what = data.draw(st.sampled_from(["replace", "replace", "delete", "add"]))
        if what == "delete":
            del node[key]
        else:
            node[key if what == "replace" else data.draw(st.text(max_size=5))] = data.draw(JUNK)
    assert len(refusal(whole).splitlines()) <= 1


def refusal(raw: dict[str, Any]) -> str:
    """What hymo says against the recipe; nothing when it can be built."""
    try:
        recipe = recipe_from_dict(raw)
        count(recipe)
        fingerprint(recipe)
    except HymoError as error:
        return str(error)
    return ""
