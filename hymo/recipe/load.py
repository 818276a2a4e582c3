"""load_recipe: base, child, scale and overrides laid over each other, then checked whole."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hymo.errors import RecipeError, did_you_mean
from hymo.recipe import rules, shipped
from hymo.recipe.explain import OVERRIDE, explain, nearest, shorten
from hymo.recipe.merge import Keys, leaves, merge, nest
from hymo.recipe.reading import Document, read_file, read_text
from hymo.recipe.tree import NAME, Recipe
from hymo.registry import discover

FULL = "full"           # the recipe as written, without a scale
MAX_EXTENDS = 8
log = logging.getLogger("hymo.recipe")


def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = (), scale: str | None = None, allow_code: bool = False) -> Recipe:
    """The recipe in a file, or the shipped one of that name, at `scale` (None or "full": as written), with `overrides` ("a.b=c") laid over it.

    Order: the recipe it extends, the recipe, the scale, the overrides in turn. `allow_code` lets the Python files under `blocks` run wherever they
    lie; without it only those inside the working folder run. Raises RecipeError: one line with file, line and column (or the override) in it.
    """
    path = shipped.find(path_or_name)
    document = _read(path, allowed=path.resolve().parent, seen=[])
    known = document.value.pop("scales", None)
    if scale is not None and scale != FULL:
        _lay_scale(document, known, scale)
    for override in overrides:
        _lay_override(document, override)
    return _validate(document, allow_code)


def scales(path_or_name: str | Path) -> list[str]:
    """Names of the recipe's scales, in the order of the file. `full`, the recipe as written, is not among them."""
    path = shipped.find(path_or_name)
    return list(_read(path, allowed=path.resolve().parent, seen=[]).value.get("scales") or {})


def replaced(path_or_name: str | Path, scale: str | None) -> list[str]:
    """What the recipe's own file sets and a scale that it inherits sets otherwise, as "model.pattern: 'MG*16' → 'MGGG*2'"."""
    path = shipped.find(path_or_name)
    document = _read(path, allowed=path.resolve().parent, seen=[])
    known = document.value.pop("scales", None)
    if scale in (None, FULL):
        return []

    def own(keys: Keys) -> bool:
        return (nearest(document.places, keys) or "").startswith(f"{path}:")

    before = {keys: value for keys, value in leaves(document.value) if own(keys)}
    _lay_scale(document, known, scale)
    after = dict(leaves(document.value))
    changed = [keys for keys, value in before.items() if keys in after and after[keys] != value and not own(keys)]
    return [f"{'.'.join(keys)}: {shorten(before[keys])} → {shorten(after[keys])}" for keys in changed]


def recipe_from_dict(raw: Mapping[str, Any], allow_code: bool = False) -> Recipe:
    """The recipe that a plain mapping describes (`to_dict`'s inverse), checked like a file. Raises RecipeError."""
    return _validate(Document(dict(raw)), allow_code)


def with_overrides(recipe: Mapping[str, Any], overrides: Sequence[str] = (), allow_code: bool = False) -> Recipe:
    """`overrides` ("a.b=c") laid over a recipe given as a plain mapping."""
    document = Document(dict(recipe))
    for override in overrides:
        _lay_override(document, override)
    return _validate(document, allow_code)


def _read(path: Path, allowed: Path, seen: list[Path]) -> Document:
    """The document of `path` laid over the one it extends. `allowed` is the folder that `extends` may not leave, the shipped recipes apart."""
    document = read_file(path)
    raw = document.value
    if raw is None:
        raise RecipeError("a recipe must hold settings, but got an empty file; `extends: v1_0` is the shortest start", str(path))
    if not isinstance(raw, dict):
        raise RecipeError(f"a recipe must be a mapping of settings, but got {shorten(raw)}", nearest(document.places, ()))
    document.value = raw
    _absolute_blocks(raw, path)
    _check_scales(document)
    parent = raw.pop("extends", None)
    if parent is None:
        return document
    where = nearest(document.places, ("extends",))
    seen = [*seen, path.resolve()]
    base_path = _parent_path(parent, path, allowed, where)
    if base_path in seen:
        raise RecipeError(f"extends must not go round in a circle, but got {' -> '.join(p.name for p in [*seen, base_path])}", where)
    if len(seen) > MAX_EXTENDS:
        raise RecipeError(f"extends must be at most {MAX_EXTENDS} recipes deep, but got more", where)
    base = _read(base_path, allowed if base_path.is_relative_to(allowed) else base_path.parent, seen)
    return Document(merge(base.value, raw), {**base.places, **document.places})


def _parent_path(parent: Any, path: Path, allowed: Path, where: str | None) -> Path:
    if not isinstance(parent, str) or "\0" in parent:
        raise RecipeError(f"extends must be one path or the name of a shipped recipe, but got {shorten(parent)}", where)
    if parent in shipped.names():
        return (shipped.folder() / f"{parent}.yaml").resolve()
    try:
        target = (path.parent / parent).resolve()
        exists = target.is_file()
    except (OSError, RuntimeError) as error:        # a loop of symbolic links, a name too long
        raise RecipeError(f"extends must be a file that exists, but got {shorten(parent)} ({error.__class__.__name__})", where) from None
    if not (target.is_relative_to(allowed) or target.is_relative_to(shipped.folder().resolve())):
        raise RecipeError(f"extends must stay inside the recipe's folder {str(allowed)!r}, but got {parent!r}", where)
    if not exists:
        raise RecipeError(f"extends must be a file that exists or a shipped recipe, but got {parent!r}{did_you_mean(parent, shipped.names())}", where)
    return target


def _check_scales(document: Document) -> None:
    known = document.value.get("scales", {})
    where = nearest(document.places, ("scales",))
    if known is not None and not isinstance(known, dict):
        raise RecipeError(f"scales must be a mapping of names to settings, but got {shorten(known)}", where)
    for name in known or {}:
        if not re.fullmatch(NAME, name):
            where = nearest(document.places, ("scales", name))
            raise RecipeError(f"a scale's name must be letters, digits and _ . + -, for it names folders, but got {shorten(name)}", where)
    if FULL in (known or {}):
        raise RecipeError("a scale must have another name than 'full', which is the recipe as written", nearest(document.places, ("scales", FULL)))


def _lay_scale(document: Document, known: Any, scale: str) -> None:
    options = [FULL, *(known or {})]
    if scale not in options:
        hint = did_you_mean(scale, options)
        raise RecipeError(f"a scale must be one of the recipe's, but got {scale!r}{hint}", nearest(document.places, ("scales",)))
    settings = known[scale]
    if not isinstance(settings, dict):
        raise RecipeError(f"a scale must be a mapping of settings, but got {shorten(settings)}", nearest(document.places, ("scales", scale)))
    for dotted, value in settings.items():
        _lay(document, tuple(dotted.split(".")), value, document.places, ("scales", scale, dotted))


def _lay_override(document: Document, override: str) -> None:
    where = f"{OVERRIDE}{shorten(override)}"
    dotted, equals, text = override.partition("=")
    keys = tuple(part.strip() for part in dotted.split("."))
    if not equals or not all(keys):
        raise RecipeError("an override must look like model.d_model=256", where)
    if not text.strip():
        raise RecipeError("an override must give a value; null takes a setting out", where)
    if re.search(r"\s#", text):
        raise RecipeError("an override must hold no ` #`, which opens a comment in YAML; a repeat is written M*8", where)
    try:
        value = read_text(text, None).value
    except RecipeError as error:
        raise RecipeError(str(error), where) from None
    if keys[0] in ("extends", "scales"):
        raise RecipeError(f"an override must change a setting of the recipe, but got {keys[0]!r}; a scale is chosen with --scale", where)
    _lay(document, keys, value, {(): where}, ())


def _lay(document: Document, keys: Keys, value: Any, places: Mapping[Keys, str], origin: Keys) -> None:
    """Lay `value` at `keys`; its parts now stand where those under `origin` stand in `places`."""
    where = nearest(places, origin) or ""
    _refuse_lists_and_leaves(document, keys, where)
    document.value = merge(document.value, nest(keys, value))
    above = {keys[:depth]: where for depth in range(1, len(keys)) if keys[:depth] not in document.places}
    moved = {keys + place[len(origin) :]: there for place, there in places.items() if place[: len(origin)] == origin}
    if len(moved) > 1 and keys in document.places:
        del moved[keys]     # a mapping laid over another: only its parts are new
    gone = set(moved) if isinstance(value, Mapping) else {place for place in document.places if place[: len(keys)] == keys}
    document.places = {place: there for place, there in document.places.items() if place not in gone} | above | moved


def _refuse_lists_and_leaves(document: Document, keys: Keys, where: str | None) -> None:
    """`train.tokens.x=1` must not turn a number into a mapping. Blocks may be given by bare name, so text is let through."""
    here: Any = document.value
    for depth, key in enumerate(keys):
        if not isinstance(here, Mapping):
            if here is not None and not isinstance(here, str):
                name = ".".join(keys[:depth])
                raise RecipeError(f"{name} must be set as a whole, but got {'.'.join(keys)}; its value is {shorten(here)}", where)
            return
        here = here.get(key)


def _validate(document: Document, allow_code: bool) -> Recipe:
    _import_blocks(document, allow_code)
    try:
        recipe = Recipe.model_validate(document.value)
    except ValidationError as error:
        raise explain(error, Recipe, document.value, document.places) from None
    rules.check(recipe, document.places)
    return recipe


def _absolute_blocks(raw: dict[str, Any], path: Path) -> None:
    """Block files are named relative to the recipe; the resolved recipe may be written anywhere."""
    if isinstance(files := raw.get("blocks"), list):
        raw["blocks"] = [str((path.parent / file).resolve()) if isinstance(file, str) and "\0" not in file else file for file in files]


def _import_blocks(document: Document, allow_code: bool) -> None:
    files = document.value.get("blocks") or []
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        return      # pydantic says so
    project = Path.cwd().resolve()
    for number, file in enumerate(files):
        where = nearest(document.places, ("blocks", str(number)))
        inside = Path(file).resolve().is_relative_to(project)
        if not (allow_code or inside):
            message = f"a block file is code and must lie in the working folder {str(project)!r}, but got {file!r}"
            raise RecipeError(f"{message}; --allow-code runs it from anywhere", where)
        if discover([Path(file)]):
            log.warning("running code from the block file %s (%s)", file, "--allow-code" if allow_code else "it lies in the working folder")
