import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from hymo.recipe import dump, load_recipe, recipe_from_dict, to_dict
from hymo.recipe.reading import read_text

TRICKY = ["on", "1e-3", "null", "~", "true", "1:20", "- a", "a: b", "a #b", "*x", "&x", "2M", "", " ", "'", '"', "é"]
printable = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff\u2028\u2029"), max_size=30)


def test_to_dict_is_json_and_holds_every_field_of_the_blocks(recipe_file):
    raw = to_dict(load_recipe(recipe_file))
    assert json.loads(json.dumps(raw)) == raw
    assert raw["model"]["layers"]["A"] == {"mixer": {"type": "narrow", "heads": 4, "rope": None}, "ffn": {"type": "wide", "inter_dim": 128}}
    assert raw["run"]["keep_last"] == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(
    name=st.one_of(printable, st.sampled_from(TRICKY)),
    lr=st.floats(1e-12, 1e12),
    seed=st.integers(0, 10**15),
)
def test_reading_what_was_dumped_is_the_identity(recipe_file, name, lr, seed):
    raw = to_dict(load_recipe(recipe_file))
    raw["run"]["experiment"] = raw["run"]["output"] = name
    raw["optimizer"]["adamw"]["lr"] = lr
    raw["run"]["seed"] = seed
    raw["data"] |= {"source": "synthetic:mqar", "options": {"a": [name, {"b": lr}], "c": None, "d": True}}
    recipe = recipe_from_dict(raw)
    assert read_text(dump(recipe), "dumped").value == to_dict(recipe)


def test_another_reader_of_yaml_agrees(recipe_file):
    recipe = load_recipe(recipe_file, ["run.output=on", "data.source='1:20'", "optimizer.adamw.lr=1e-12"])
    assert YAML(typ="safe", pure=True).load(dump(recipe)) == to_dict(recipe)


def test_it_reads_like_a_recipe(recipe_file):
    lines = dump(load_recipe(recipe_file)).splitlines()
    assert lines[0] == "name: small"
    assert lines[1:5] == ["model:", "  vocab_size: 257", "  d_model: 64", "  pattern: AGGG*2"]
    assert max(map(len, lines)) <= 160
