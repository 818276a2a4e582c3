"""What differs between two recipes once everything is resolved: the settings that reach the blocks, not the words that led there.

Layers are compared by their logical names (M0, G3), so that a layer that moved is the same layer, and the order of the stack is a difference of its
own. Ten layers that change alike are one difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from hymo.recipe import Recipe, ResolvedLayer, resolve_stack, to_dict

BOOKKEEPING = ("name", "run", "blocks")  # changes no result; seeds are shown by whoever compares runs
IN_THE_STACK = ("layers", "overrides", "pattern", "swap")  # seen through the resolved layers


@dataclass(frozen=True)
class Change:
    """One setting with its value on either side; `layers` are the positions (in the other recipe) that it touches."""

    setting: str
    before: Any
    after: Any
    layers: tuple[int, ...] = ()

    def matches(self, patterns: list[str]) -> bool:
        """Whether one of the patterns names this setting, or something above it; the layer symbol may be left out."""
        names = [self.setting, self.setting.partition(".")[2]] if self.layers else [self.setting]
        return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for name in names for pattern in patterns)

    def __str__(self) -> str:
        shown = [*map(str, self.layers[:3]), "…", str(self.layers[-1])] if len(self.layers) > 5 else map(str, self.layers)
        where = f"  [layers {', '.join(shown)}]" if self.layers else ""
        return f"{self.setting}: {brief(self.before)} → {brief(self.after)}{where}"


def differences(base: Recipe, other: Recipe) -> list[Change]:
    """Every resolved difference from `base` to `other`, the stack first."""
    before, after = resolve_stack(base.model), resolve_stack(other.model)
    found: list[Change] = []
    if _names(before) != _names(after):
        found.append(Change("order", order(before), order(after)))
    found += _layer_changes({layer.info.name: layer for layer in before}, after)
    one, two = _settings(base), _settings(other)
    found += [Change(setting, *values) for setting, *values in _walk(one, two, "")]
    return found


def order(stack: list[ResolvedLayer]) -> str:
    """The stack's symbols, runs of a repeated unit written as the pattern writes them; logical names once layers left their places."""
    names = _names(stack)
    symbols = "".join(layer.info.symbol for layer in stack)
    seen: dict[str, int] = {}
    for layer in stack:
        if layer.info.ordinal != seen.get(layer.info.symbol, 0):
            return " ".join(names)
        seen[layer.info.symbol] = layer.info.ordinal + 1
    for width in range(1, len(symbols) // 2 + 1):
        if len(symbols) % width == 0 and symbols == symbols[:width] * (len(symbols) // width):
            return f"{symbols[:width]}*{len(symbols) // width}"
    return "".join(f"{symbol}{'*' + str(n) if (n := len(list(run))) > 1 else ''} " for symbol, run in groupby(symbols)).strip()


def brief(value: Any) -> str:
    """A value in few words: a block by its type and what it sets."""
    if isinstance(value, Mapping):
        if "type" in value:
            return str(value["type"])
        return "{" + ", ".join(f"{key}: {brief(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:g}"
    return "—" if value is None else str(value)


def _names(stack: list[ResolvedLayer]) -> list[str]:
    return [layer.info.name for layer in stack]


def _layer_changes(before: Mapping[str, ResolvedLayer], after: list[ResolvedLayer]) -> list[Change]:
    grouped: dict[tuple[str, str, str], tuple[Any, Any, list[int]]] = {}
    for layer in after:
        was = before.get(layer.info.name)
        if was is None:
            continue
        old = {"mixer": was.mixer.model_dump(), "ffn": was.ffn.model_dump()}
        new = {"mixer": layer.mixer.model_dump(), "ffn": layer.ffn.model_dump()}
        for setting, one, two in _walk(old, new, layer.info.symbol):
            grouped.setdefault((setting, repr(one), repr(two)), (one, two, []))[2].append(layer.info.index)
    return [Change(setting, one, two, tuple(layers)) for (setting, _, _), (one, two, layers) in grouped.items()]


def _settings(recipe: Recipe) -> dict[str, Any]:
    """The recipe outside the stack and the bookkeeping."""
    tree = {key: value for key, value in to_dict(recipe).items() if key not in BOOKKEEPING}
    tree["model"] = {key: value for key, value in tree["model"].items() if key not in IN_THE_STACK}
    return tree


def _walk(one: Any, two: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Leaves that differ. A block that changed its type is one leaf: its fields belong to the type."""
    if isinstance(one, Mapping) and isinstance(two, Mapping) and one.get("type") == two.get("type"):
        for key in [*one, *(key for key in two if key not in one)]:
            yield from _walk(one.get(key), two.get(key), f"{name}.{key}" if name else str(key))
    elif one != two:
        yield name, one, two
