"""Random recipes over every registered block, at dims so small that a model is built and trained in a fraction of a second.

A block's settings are drawn from the types and bounds of its own `Config`, so that a new block or setting is fuzzed from the day it is registered.
What its `check` refuses is drawn again.
"""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from hymo import registry
from hymo.errors import HymoError
from hymo.pattern import render
from hymo.recipe import Recipe, recipe_from_dict
from hymo.recipe.keys import block_field

ELSEWHERE = {"triton", "fla"}           # implementations that need a GPU
TRIES = 12                              # draws of a block before a recipe without it is tried

WIDTHS = ("dim", "rank", "inner", "state")


@st.composite
def setting(draw: st.DrawFn, name: str, field: FieldInfo) -> Any:
    """A value for one field of a Config."""
    block = block_field(field)
    if block is not None:
        return draw(st.none() | blocks(block.kind)) if type(None) in get_args(field.annotation) else draw(blocks(block.kind))
    kinds = get_args(field.annotation) if get_origin(field.annotation) in (Union, types.UnionType) else (field.annotation,)
    kind = draw(st.sampled_from(kinds))
    if kind is type(None):
        return None
    if get_origin(kind) is Literal:
        return draw(st.sampled_from([value for value in get_args(kind) if value not in ELSEWHERE]))
    if kind is bool:
        return draw(st.booleans())
    low = max([bound.gt for bound in field.metadata if isinstance(bound, annotated_types.Gt)]
              + [bound.ge for bound in field.metadata if isinstance(bound, annotated_types.Ge)] + [-1], key=float)
    high = min([bound.le for bound in field.metadata if isinstance(bound, annotated_types.Le)] + [1e9])
    if kind is int:
        few = [8, 16, 12] if any(word in name for word in WIDTHS) else [1, 2, 4, 3]
        return draw(st.sampled_from([value for value in [0, *few] if value > low or (value == low and field_allows(field, value))]))
    assert kind is float, f"fuzz {name}: {field.annotation} too"
    return draw(st.sampled_from([value for value in (0.25, 0.5, 1.0, 2.0, 8.0) if low <= value <= high]))


def field_allows(field: FieldInfo, value: int) -> bool:
    """Whether `value`, which lies on the lower bound, lies within."""
    return not any(isinstance(bound, annotated_types.Gt) and value <= bound.gt for bound in field.metadata)  # type: ignore[operator]


@st.composite
def blocks(draw: st.DrawFn, kind: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """A block of this kind and every setting of it, valid for itself or not."""
    name = draw(st.sampled_from(names or tuple(registry.names(kind))))
    fields = {key: field for key, field in registry.get(kind, name).Config.model_fields.items() if key != "type"}
    if kind == "head":
        depth = draw(st.integers(0, 2))
        fixed = {"depth": depth, "weights": draw(st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=depth, max_size=depth))}
        return {"type": name, **fixed, **{key: draw(setting(key, field)) for key, field in fields.items() if key not in fixed}}
    return {"type": name, **{key: draw(setting(key, field)) for key, field in fields.items()}}


def loads(raw: dict[str, Any]) -> bool:
    """Whether hymo takes the recipe."""
    try:
        recipe_from_dict(raw)
    except HymoError:
        return False
    return True


@st.composite
def raw_recipes(draw: st.DrawFn) -> dict[str, Any]:
    """A valid recipe as a plain mapping: one to three kinds of layers, up to six of them, and every part of the rest."""
    seq_len, rows = draw(st.sampled_from([8, 17, 32])), draw(st.integers(1, 3))
    raw: dict[str, Any] = {
        "name": "random",
        "model": {
            "pattern": "A", "layers": {"A": {"mixer": "none"}},
            "vocab_size": draw(st.sampled_from([257, 300])), "d_model": draw(st.sampled_from([8, 16, 32])), "max_seq_len": 64,
            "tie_embeddings": draw(st.booleans()), "softcap": draw(st.sampled_from([0, 15])),
        },
        "optimizer": {
            "hidden": draw(st.sampled_from(["normuon", "muon", "adamw"])), "experts": draw(st.sampled_from(["adamw", "normuon"])),
            "normuon": {"lr": 1e-3, "scaling": draw(st.sampled_from(["rms_norm", "spectral"])), "nesterov": draw(st.booleans())},
            "adamw": {"lr": 1e-3}, "grad_clip": draw(st.sampled_from([0, 1])),
        },
        "train": {
            "steps": 2, "seq_len": seq_len, "tokens_per_step": rows * seq_len, "micro_batch": draw(st.sampled_from([1, rows])), "device": "cpu",
            "dtype": draw(st.sampled_from(["fp32", "fp32", "bf16"])), "checkpoint_activations": draw(st.booleans()),
            "on_bad_loss": draw(st.sampled_from(["stop", "skip"])), "spike_sigma": draw(st.sampled_from([None, 6.0])),
        },
        "run": {"seed": draw(st.integers(0, 2**40)), "tracking": "none"},
    }
    model = raw["model"]
    accept(draw, raw, model, "rope", blocks("position"))
    symbols = "ABC"[: draw(st.integers(1, 3))]
    for symbol in symbols:
        layer: dict[str, Any] = {"mixer": "none"}
        if symbol == "A":
            model["layers"] = {}
        model["layers"][symbol] = layer
        model["pattern"] = "".join(model["layers"])
        accept(draw, raw, layer, "mixer", blocks("mixer"))
        accept(draw, raw, layer, "ffn", blocks("ffn"))
    accept(draw, raw, model, "mtp", blocks("head"))
    rest = draw(st.lists(st.sampled_from(symbols), max_size=6 - len(symbols)))
    model["pattern"] = render(draw(st.permutations([*symbols, *rest])))
    if draw(st.booleans()):
        change = draw(st.sampled_from(symbols) | blocks("ffn").map(lambda ffn: {"ffn": ffn}) | st.just({"mixer": {"rope": "none"}}))
        keys = st.sampled_from(["all", "0", f"after:{symbols[0]}", f"{symbols[-1]}[0]"])
        accept(draw, raw, model, "overrides", keys.map(lambda key: {key: change}))
    if draw(st.booleans()):
        accept(draw, raw, model, "swap", st.just([[0, len(symbols) + len(rest) - 1]]))
    return raw


def accept(draw: st.DrawFn, raw: dict[str, Any], part: dict[str, Any], key: str, values: st.SearchStrategy[Any]) -> None:
    """Put a drawn value under `part[key]` such that the recipe stays valid; leave what is there after TRIES in vain."""
    before = dict(part)
    for _ in range(TRIES):
        part[key] = draw(values)
        if loads(raw):
            return
    part.clear()
    part.update(before)


recipes: st.SearchStrategy[Recipe] = raw_recipes().map(recipe_from_dict)
