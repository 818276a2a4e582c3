import json

import pytest
from pydantic import BaseModel

from hymo import registry
from hymo.block import KINDS
from hymo.recipe import json_schema
from hymo.recipe.tree import Recipe


@pytest.fixture
def schema():
    return json_schema()


def nodes(schema):
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nodes(value)


def test_it_is_json_and_every_reference_leads_somewhere(schema):
    assert json.loads(json.dumps(schema)) == schema
    refs = {node["$ref"] for node in nodes(schema) if isinstance(node.get("$ref"), str)}
    assert refs
    for ref in refs:
        assert ref.removeprefix("#/$defs/") in schema["$defs"]
    assert not any("x-block" in node for node in nodes(schema))


def test_every_block_is_told_apart_by_its_type(schema):
    for kind in KINDS:
        union = schema["$defs"][kind]["anyOf"]
        assert union[0] == {"enum": registry.names(kind)}
        assert union[1]["discriminator"]["mapping"] == {name: f"#/$defs/{kind}.{name}" for name in registry.names(kind)}
        for name in registry.names(kind):
            assert schema["$defs"][f"{kind}.{name}"]["properties"]["type"]["const"] == name
    layer = schema["$defs"]["LayerConfig"]["properties"]
    assert layer["mixer"]["$ref"] == "#/$defs/mixer"
    assert layer["ffn"]["$ref"] == "#/$defs/ffn"


def test_a_block_inside_a_block_may_be_null(schema):
    rope = schema["$defs"]["mixer.narrow"]["properties"]["rope"]["anyOf"]
    assert {"type": "null"} in rope
    assert {"$ref": "#/$defs/position"} in rope


def test_every_setting_is_there_with_its_description(schema):
    def compare(model: type[BaseModel], properties):
        for name, field in model.model_fields.items():
            assert properties[name]["description"] == field.description, f"{model.__name__}.{name}"

    compare(Recipe, schema["properties"])
    for field in Recipe.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            compare(field.annotation, schema["$defs"][field.annotation.__name__]["properties"])
    heads = schema["$defs"]["mixer.narrow"]["properties"]["heads"]
    assert heads == {"default": 2, "description": "heads", "exclusiveMinimum": 0, "title": "Heads", "type": "integer"}


def test_a_file_may_leave_out_what_another_layer_supplies(schema):
    assert {"extends", "scales"} <= set(schema["properties"])
    assert not any(isinstance(node.get("required"), list) for node in nodes(schema))
    assert schema["additionalProperties"] is False


def test_counts_may_carry_units(schema):
    tokens = schema["$defs"]["TrainConfig"]["properties"]["tokens"]
    assert "string" in json.dumps(tokens)
