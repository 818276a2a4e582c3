"""The recipe's JSON schema, for editors: every key with its description, every block's Config told apart by its `type`."""

from __future__ import annotations

from typing import Any

from hymo import registry
from hymo.block import KINDS, Kind
from hymo.recipe.tree import Recipe


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a recipe file. No key is `required`: `extends`, a scale or an override may supply it; loading checks the whole."""
    schema = Recipe.model_json_schema()
    defs = schema.pop("$defs")
    for kind in KINDS:
        for name in registry.names(kind):
            defs[f"{kind}.{name}"] = _block_schema(kind, name, defs)
        defs[kind] = _union(kind)
    schema["properties"] = {
        "extends": {"type": "string", "description": "a shipped recipe's name, or a file in this recipe's folder; this recipe is laid over it"},
        **schema["properties"],
        "scales": {
            "type": "object",
            "description": "the same recipe at other sizes: dotted keys (model.d_model: 128) or nested settings, laid over the recipe",
            "additionalProperties": {"type": "object"},
        },
    }
    linked: dict[str, Any] = _linked({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": defs})
    return linked


def _block_schema(kind: Kind, name: str, defs: dict[str, Any]) -> dict[str, Any]:
    block = registry.get(kind, name)
    schema = block.Config.model_json_schema(ref_template=f"#/$defs/{kind}.{name}.{{model}}")
    for inner, inner_schema in schema.pop("$defs", {}).items():
        defs[f"{kind}.{name}.{inner}"] = inner_schema
    schema["title"] = name
    schema["description"] = " ".join((block.__doc__ or "").split("\n\n")[0].split())
    return schema


def _union(kind: Kind) -> dict[str, Any]:
    names = registry.names(kind)
    configs = [{"$ref": f"#/$defs/{kind}.{name}"} for name in names]
    mapping = {name: f"#/$defs/{kind}.{name}" for name in names}
    return {"anyOf": [{"enum": names}, {"oneOf": configs, "discriminator": {"propertyName": "type", "mapping": mapping}}]}


def _linked(schema: Any) -> Any:
    """`schema` with every place of a block linked to the union of its kind, and without `required`."""
    if isinstance(schema, list):
        return [_linked(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _linked(value) for key, value in schema.items() if not (key == "required" and isinstance(value, list))}
    kind = kept.pop("x-block", None)
    return {**kept, "$ref": f"#/$defs/{kind}"} if kind else kept
