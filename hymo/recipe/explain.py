"""Pydantic's findings as one line each: where, what must hold, what was given, and what was perhaps meant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from hymo.errors import RecipeError, did_you_mean
from hymo.recipe.keys import settings_at
from hymo.recipe.merge import Keys

Places = Mapping[Keys, str]
OVERRIDE = "override "      # opens the place of a setting that was given on the command line

_WANTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping of settings",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of ordinary size",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a mapping of settings",
    "string_type": "text (in quotes, when it looks like a number)",
    "tuple_type": "a list",
}


def nearest(places: Places, keys: Keys) -> str | None:
    """The place of `keys`, or of the closest setting above it."""
    for length in range(len(keys), -1, -1):
        if keys[:length] in places:
            return places[keys[:length]]
    return None


def blame(places: Places, *candidates: Keys) -> str | None:
    """The place to name when several settings disagree: the override at or under the first candidate that has one, else the first candidate's."""
    for keys in candidates:
        overrides = [where for place, where in places.items() if place[: len(keys)] == keys and where.startswith(OVERRIDE)]
        if overrides:
            return overrides[-1]
    return nearest(places, candidates[0])


def explain(error: ValidationError, root: type[BaseModel], raw: Any, places: Places, prefix: Keys = ()) -> RecipeError:
    """The first finding as a RecipeError. `prefix` says where in the recipe `root` stands.

    A key that is not known comes first: it is most often the misspelt key that another finding says is missing.
    """
    findings = list(_flatten(error, ()))
    findings.sort(key=lambda finding: finding[1]["type"] != "extra_forbidden")
    loc, detail = findings[0]
    place = prefix + loc
    if detail["type"] == "value_error" and (*place, "type") in places:
        place = (*place, "type")        # a block that is not registered
    missing = [".".join(keys) for keys, found in findings if found["type"] == "missing" and keys[:-1] == loc[:-1]]
    if detail["type"] == "missing" and len(missing) > 1:
        return RecipeError(f"{', '.join(missing[:-1])} and {missing[-1]} must be given", nearest(places, place))
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return RecipeError(_message(loc, detail, root, raw, prefix) + more, nearest(places, place))


def _flatten(error: ValidationError, prefix: Keys) -> Any:
    """(keys, finding) pairs; a block's own findings arrive wrapped in the finding of the field that holds it."""
    for detail in error.errors(include_url=False):
        loc = prefix + tuple(str(part) for part in detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, ValidationError):
            yield from _flatten(cause, loc)
        else:
            yield loc, detail


def _message(loc: Keys, detail: Any, root: type[BaseModel], raw: Any, prefix: Keys) -> str:
    name = ".".join(prefix + loc)
    parent = ".".join(prefix + loc[:-1])
    kind, given = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        settings = settings_at(root, raw, loc[:-1])
        hint = did_you_mean(loc[-1], settings.model_fields if settings else ())
        return f"{parent or getattr(root, 'WHAT', 'the settings')} must hold only known keys, but got {loc[-1]!r}{hint}"
    if kind == "missing":
        settings = settings_at(root, raw, loc[:-1])
        described = settings.model_fields[loc[-1]].description if settings and loc[-1] in settings.model_fields else None
        return f"{name} must be given" + (f": {described}" if described else "")
    if kind == "value_error":
        return f"{name}: {detail['ctx']['error']}"
    if kind in _WANTED:
        return f"{name} must be {_WANTED[kind]}, but got {shorten(given)}"
    message = detail["msg"].replace("Input should", "must").replace("Value should", "must").replace("String should", "must")
    hint = ""
    if kind == "literal_error" and isinstance(given, str):      # the message lists the choices already
        hint = did_you_mean(given, re.findall("'([^']*)'", detail["ctx"]["expected"]))
    return f"{name} {message}, but got {shorten(given)}" + (hint if "did you mean" in hint else "")


def shorten(value: Any, limit: int = 60) -> str:
    """repr(value), cut to one short line."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
