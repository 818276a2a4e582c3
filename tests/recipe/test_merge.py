import pytest

from hymo.recipe.merge import merge, nest


@pytest.mark.parametrize(
    ("base", "new", "merged"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": 5}, {"a": 5}),
        ({"a": 5}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
        # a changed type drops the old type's fields, the same type keeps them, a bare name is a type
        ({"mixer": {"type": "x", "k": 1}}, {"mixer": {"type": "y"}}, {"mixer": {"type": "y"}}),
        ({"mixer": {"type": "x", "k": 1}}, {"mixer": {"type": "x", "j": 2}}, {"mixer": {"type": "x", "k": 1, "j": 2}}),
        ({"mixer": {"type": "x", "k": 1}}, {"mixer": "y"}, {"mixer": {"type": "y"}}),
        ({"mixer": {"type": "x", "k": 1}}, {"mixer": "x"}, {"mixer": {"type": "x", "k": 1}}),
        ({"mixer": "x"}, {"mixer": {"k": 1}}, {"mixer": {"type": "x", "k": 1}}),
        ({"mixer": "x"}, {"mixer": {"type": "y", "k": 1}}, {"mixer": {"type": "y", "k": 1}}),
        # tokens and steps replace each other; both at once stay, for the rules to refuse
        ({"train": {"tokens": 5}}, {"train": {"steps": 2}}, {"train": {"steps": 2}}),
        ({"train": {"steps": 5}}, {"train": {"tokens": 2}}, {"train": {"tokens": 2}}),
        ({"train": {"steps": 5}}, {"train": {"tokens": 2, "steps": 3}}, {"train": {"tokens": 2, "steps": 3}}),
        # null takes a named thing out, and only there
        ({"model": {"layers": {"A": 1, "B": 2}}}, {"model": {"layers": {"A": None}}}, {"model": {"layers": {"B": 2}}}),
        ({"scales": {"tiny": {}}}, {"scales": {"tiny": None}}, {"scales": {}}),
        ({"data": {"source": "a", "field": "t"}}, {"data": "builtin"}, {"data": {"source": "builtin", "field": "t"}}),
        # an override's symbol is no block's name
        ({"model": {"overrides": {"5": "G"}}}, {"model": {"overrides": {"5": {"ffn": "z"}}}}, {"model": {"overrides": {"5": {"ffn": "z"}}}}),
    ],
)
def test_merge(base, new, merged):
    before = repr((base, new))
    assert merge(base, new) == merged
    assert repr((base, new)) == before


def test_an_override_set_anew_moves_to_the_end_because_later_keys_win():
    base = {"model": {"overrides": {"5": {"ffn": "x"}, "all": {"ffn": "y"}}}}
    assert list(merge(base, {"model": {"overrides": {"5": {"ffn": "z"}}}})["model"]["overrides"]) == ["all", "5"]


def test_nest():
    assert nest(("a", "b", "c"), 1) == {"a": {"b": {"c": 1}}}
    assert nest((), 1) == 1
