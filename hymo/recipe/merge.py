"""Laying settings over settings: a child over its base, a scale over the recipe, an override over both.

Mappings merge key by key and everything else is replaced, with three rules that a recipe needs:

- a block whose `type` changes drops the fields of the old type; a bare name ("gdn") is short for {type: gdn};
- train.tokens replaces train.steps, and the other way round;
- `null` for a symbol in model.layers, an override or a scale takes it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Keys = tuple[str, ...]      # the way to a setting, from the top of the recipe
OVERRIDES = ("model", "overrides")
ONE_OF = {("train", "tokens"): "steps", ("train", "steps"): "tokens"}
REMOVABLE = (("model", "layers"), OVERRIDES, ("scales",))
SHORT = {("data",): "source"}      # `data=builtin` is short for data.source=builtin


def merge(base: Any, new: Any, keys: Keys = ()) -> Any:
    """`new` laid over `base`, both left as they are. `keys` says where in the recipe the two stand."""
    if keys in SHORT and isinstance(new, str):
        new = {SHORT[keys]: new}
    if isinstance(base, Mapping) and "type" in base and isinstance(new, str):
        new = {"type": new}
    if isinstance(base, str) and isinstance(new, Mapping) and keys[:-1] != OVERRIDES:
        base = {"type": base}
    if not isinstance(new, Mapping):
        return new
    if not isinstance(base, Mapping):
        base = {}
    if new.get("type", base.get("type")) != base.get("type"):
        base = {}
    merged = dict(base)
    for key, value in new.items():
        if keys in REMOVABLE and value is None:
            merged.pop(key, None)
            continue
        other = ONE_OF.get((*keys, key))
        if other is not None and other not in new:
            merged.pop(other, None)
        old = merged.pop(key, None) if keys == OVERRIDES else merged.get(key)       # an override set anew is the latest, and so the strongest
        merged[key] = merge(old, value, (*keys, key))
    return merged


def nest(keys: Keys, value: Any) -> Any:
    """{"a": {"b": value}} for keys ("a", "b")."""
    for key in reversed(keys):
        value = {key: value}
    return value


def leaves(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Every setting in `value` that is no mapping, with the way to it from `keys` on."""
    if not isinstance(value, Mapping):
        yield keys, value
        return
    for key, inner in value.items():
        yield from leaves(inner, (*keys, key))
