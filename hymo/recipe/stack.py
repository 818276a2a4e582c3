"""The stack, layer by layer: pattern, then swaps, then overrides.

    overrides: {5: …, "3,7,11": …, "3:28:4": …, "before:M": …, "after:M": …, "M[0]": …, all: …}

Positions count from 0 after the swaps. Every key selects among the layers as they stand before any override; the overrides then apply in the order
written, so later keys win. A value is merged onto the layer ({mixer: {rope: none}}), or replaces it by the layer of another symbol ("G").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from hymo.block import BlockConfig, LayerInfo
from hymo.errors import RecipeError, did_you_mean
from hymo.pattern import check_symbols, parse
from hymo.recipe.explain import Places, explain, nearest
from hymo.recipe.merge import OVERRIDES, merge
from hymo.recipe.tree import LayerConfig, ModelConfig


@dataclass(frozen=True)
class ResolvedLayer:
    """One layer of the stack as it will be built."""

    info: LayerInfo
    mixer: BlockConfig
    ffn: BlockConfig
    overridden: tuple[str, ...]     # the override keys that touched it, in order


@dataclass
class _Slot:
    symbol: str
    ordinal: int
    settings: Any                   # the layer as a plain mapping
    overridden: tuple[str, ...] = ()


def resolve_stack(model: ModelConfig, places: Places | None = None) -> list[ResolvedLayer]:
    """The layers of `model`, first to last.

    A layer keeps the ordinal it has in the pattern when layers are swapped, so its weights move with it; a layer that an override turns into
    another symbol takes the next free ordinal of that symbol, so no other layer is renamed. Raises RecipeError (PatternError for the pattern).
    """
    places = places or {}
    slots = _swapped(_slots(model, places), model, places)
    selected = {key: _select(key, slots, places) for key in model.overrides}
    next_ordinal = {symbol: sum(slot.symbol == symbol for slot in slots) for symbol in model.layers}
    for key, change in model.overrides.items():
        for index in selected[key]:
            _apply(key, change, slots[index], model, next_ordinal, places)
    validated: dict[str, LayerConfig] = {}
    return [_resolve(index, slot, model, validated, places) for index, slot in enumerate(slots)]


def _slots(model: ModelConfig, places: Places) -> list[_Slot]:
    try:
        symbols = parse(model.pattern)
        check_symbols(model.pattern, model.layers)
    except RecipeError as error:
        raise type(error)(str(error), nearest(places, ("model", "pattern"))) from None
    plain = {symbol: layer.model_dump() for symbol, layer in model.layers.items()}
    seen = dict.fromkeys(model.layers, 0)
    slots = []
    for symbol in symbols:
        slots.append(_Slot(symbol, seen[symbol], plain[symbol]))
        seen[symbol] += 1
    return slots


def _swapped(slots: list[_Slot], model: ModelConfig, places: Places) -> list[_Slot]:
    for number, (first, second) in enumerate(model.swap):
        for position in (first, second):
            if not 0 <= position < len(slots):
                where = nearest(places, ("model", "swap", str(number)))
                raise RecipeError(f"model.swap must name positions from 0 to {len(slots) - 1}, but got {position}", where)
        slots[first], slots[second] = slots[second], slots[first]
    return slots


def _select(key: str, slots: list[_Slot], places: Places) -> list[int]:
    """Positions that the override key names, in stack order."""
    where = nearest(places, (*OVERRIDES, key))
    found: set[int] = set()
    for part in key.split(","):
        positions = _select_one(part.strip(), slots, where)
        if not positions:
            raise RecipeError(f"an override must select at least one layer, but got {key!r}, which selects none of {len(slots)}", where)
        found.update(positions)
    return sorted(found)


def _select_one(part: str, slots: list[_Slot], where: str | None) -> list[int]:
    count = len(slots)
    if part == "all":
        return list(range(count))
    if re.fullmatch(r"[0-9]{1,9}", part):
        if int(part) >= count:
            raise RecipeError(f"an override's position must be from 0 to {count - 1}, but got {part}", where)
        return [int(part)]
    if re.fullmatch(r"[0-9]{1,9}:[0-9]{1,9}(:[0-9]{1,9})?", part):
        start, stop, *step = map(int, part.split(":"))
        if stop > count or step == [0]:
            raise RecipeError(f"an override's range must end at {count} or before and step by 1 or more, but got {part!r}", where)
        return list(range(start, stop, *step))
    relative = re.fullmatch(r"(before|after):([A-Za-z])", part)
    nth = re.fullmatch(r"([A-Za-z])\[([0-9]{1,9})\]", part)
    if relative is None and nth is None:
        forms = "5, '3,7,11', '3:28:4', before:M, after:M, M[0] or all"
        raise RecipeError(f"an override's position must be one of the forms {forms}, but got {part!r}", where)
    symbol = relative[2] if relative else nth[1] if nth else ""
    symbols = [slot.symbol for slot in slots]
    if symbol not in symbols:
        raise RecipeError(f"an override's symbol must be one of the pattern's, but got {symbol!r}{did_you_mean(symbol, set(symbols))}", where)
    if relative:
        shift = -1 if relative[1] == "before" else 1
        return [i + shift for i, s in enumerate(symbols) if s == symbol and 0 <= i + shift < count]
    ordinal = int(nth[2]) if nth else 0
    positions = [i for i, slot in enumerate(slots) if slot.symbol == symbol and slot.ordinal == ordinal]
    if not positions:
        raise RecipeError(f"{symbol}[N] must have N from 0 to {symbols.count(symbol) - 1}, but got {part!r}", where)
    return positions


def _apply(key: str, change: Any, slot: _Slot, model: ModelConfig, next_ordinal: dict[str, int], places: Places) -> None:
    slot.overridden += (key,)
    if isinstance(change, Mapping):
        slot.settings = merge(slot.settings, change)
        return
    if change not in model.layers:
        hint = did_you_mean(change, model.layers)
        raise RecipeError(f"an override must be a mapping or a symbol of model.layers, but got {change!r}{hint}", nearest(places, (*OVERRIDES, key)))
    if change != slot.symbol:
        slot.symbol, slot.ordinal = change, next_ordinal[change]
        next_ordinal[change] += 1
    slot.settings = model.layers[change].model_dump()


def _resolve(index: int, slot: _Slot, model: ModelConfig, validated: dict[str, LayerConfig], places: Places) -> ResolvedLayer:
    layer = model.layers[slot.symbol]
    if slot.overridden:
        memo = repr(slot.settings)
        if memo not in validated:
            try:
                validated[memo] = LayerConfig.model_validate(slot.settings)
            except ValidationError as error:
                raise explain(error, LayerConfig, slot.settings, places, (*OVERRIDES, slot.overridden[-1])) from None
        layer = validated[memo]
    info = LayerInfo(index=index, symbol=slot.symbol, ordinal=slot.ordinal, model=model)
    return ResolvedLayer(info, layer.mixer, layer.ffn, slot.overridden)
