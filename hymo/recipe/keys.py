"""Which settings exist at a place of the recipe: the walk that error messages, overrides and the JSON schema share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hymo.errors import RegistryError
from hymo.registry import BlockField, get


def block_field(info: FieldInfo) -> BlockField | None:
    """The BlockField of a field that holds a block's config, or may (`Position | None` keeps it inside the union)."""
    inside = [item for part in get_args(info.annotation) for item in getattr(part, "__metadata__", ())]
    return next((item for item in [*info.metadata, *inside] if isinstance(item, BlockField)), None)


def settings_at(root: type[BaseModel], raw: Any, keys: tuple[str, ...]) -> type[BaseModel] | None:
    """The class whose fields are the keys allowed at `keys`; None where any key may stand, or none may.

    `raw` is the recipe as read: which block stands at a place is known only from its `type`.
    """
    here: type[BaseModel] | None = root
    annotation: Any = None
    for key in keys:
        raw = raw.get(key) if isinstance(raw, Mapping) else None
        if here is None:
            annotation = _inside(annotation)
            here = _settings(annotation)
            continue
        info = here.model_fields.get(key)
        if info is None:
            return None
        block = block_field(info)
        annotation = info.annotation
        here = _block_config(block, raw) if block else _settings(annotation)
    return here


def _block_config(field: BlockField, raw: Any) -> type[BaseModel] | None:
    name = raw if isinstance(raw, str) else raw.get("type", field.default) if isinstance(raw, Mapping) else field.default
    try:
        return get(field.kind, str(name)).Config
    except RegistryError:
        return None


def _settings(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _inside(annotation: Any) -> Any:
    """The values' type of dict[str, X], else None."""
    return get_args(annotation)[1] if get_origin(annotation) is dict else None
