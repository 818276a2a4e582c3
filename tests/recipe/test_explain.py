import pytest
from pydantic import ValidationError

from hymo.recipe.explain import blame, explain, nearest, shorten
from hymo.recipe.tree import Recipe

PLACES = {(): "f:1:1", ("a",): "f:2:1", ("a", "b"): "f:3:3", ("c", "d"): "override 'c.d=1'", ("c", "e"): "override 'c.e=1'"}


@pytest.mark.parametrize(
    ("keys", "where"), [(("a", "b"), "f:3:3"), (("a", "b", "c"), "f:3:3"), (("a", "x"), "f:2:1"), (("z",), "f:1:1"), ((), "f:1:1")]
)
def test_nearest_is_the_place_or_the_closest_above(keys, where):
    assert nearest(PLACES, keys) == where
    assert nearest({}, keys) is None


def test_blame_prefers_the_latest_override():
    assert blame(PLACES, ("a",), ("c",)) == "override 'c.e=1'"
    assert blame(PLACES, ("a", "b"), ("z",)) == "f:3:3"
    assert blame(PLACES, ("c", "d"), ("c",)) == "override 'c.d=1'"


def test_an_unknown_key_comes_before_what_its_misspelling_left_out():
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({"nme": "x"})
    message = str(explain(caught.value, Recipe, {"nme": "x"}, PLACES))
    assert message == "f:1:1: a recipe must hold only known keys, but got 'nme'; did you mean 'name'? (and 4 more)"


def test_long_values_are_cut():
    assert shorten("x" * 100) == "'" + "x" * 58 + "…"
    assert shorten([1]) == "[1]"
