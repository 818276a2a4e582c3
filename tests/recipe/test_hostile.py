"""Random damage to a valid recipe: it loads, or says why in one line; never a traceback, never a hang."""

import copy

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hymo.errors import HymoError
from hymo.recipe import dump, fingerprint, load_recipe, recipe_from_dict, resolve_stack, to_dict

words = st.text(max_size=8) | st.sampled_from(["none", "A", "MG*99999999", "type", "2M", "rope", ""])
keys = st.text(max_size=6) | st.sampled_from(["type", "mixer", "5", "all", "A"])
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
random_settings = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def outcome(load) -> str:
    """What `load` says; nothing when it gives a recipe that can be used."""
    try:
        recipe = load()
    except HymoError as error:
        return str(error)
    resolve_stack(recipe.model)
    fingerprint(recipe)
    dump(recipe)
    return ""


def nodes(value, path=()):
    yield path
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from nodes(inner, (*path, key))


@random_settings
@given(data=st.data())
def test_any_setting_replaced_by_anything(recipe_file, data):
    raw = copy.deepcopy(to_dict(load_recipe(recipe_file, ["model.overrides={'1': {ffn: wide}}"])))
    *above, key = data.draw(st.sampled_from([path for path in nodes(raw) if path]))
    node = raw
    for step in above:
        node = node[step]
    node[data.draw(st.just(key) | st.text(max_size=6))] = data.draw(junk)
    assert len(outcome(lambda: recipe_from_dict(raw)).splitlines()) <= 1


SETTINGS = ["name", "model.pattern", "model.overrides", "model.layers.A", "model.layers.G.mixer", "model.swap", "model.rope", "train", "data"]

@random_settings
@given(
    key=st.sampled_from(SETTINGS)
    | st.text("model.layers[]{}:=* ", max_size=20),
    value=st.text("AG*(){}[]:,0123456789.-mixertypnone'\"# \n", max_size=30),
)
def test_any_override(recipe_file, key, value):
    assert len(outcome(lambda: load_recipe(recipe_file, [f"{key}={value}"])).splitlines()) <= 1


@random_settings
@given(data=st.data())
def test_any_damage_to_the_text(recipe_file, data):
    text = recipe_file.read_text()
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 40)))
    damaged = recipe_file.with_name("damaged.yaml")
    damaged.write_text(text[:begin] + data.draw(st.text("{}[]:,-*&!#|>'\"\n\t 09azAG", max_size=8)) + text[end:])
    assert len(outcome(lambda: load_recipe(damaged, scale="half")).splitlines()) <= 1
