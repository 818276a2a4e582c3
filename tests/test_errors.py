import pytest

from hymo import errors
from hymo.errors import HymoError, PatternError, RecipeError, did_you_mean


def test_every_error_is_a_hymo_error():
    kinds = [thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, Exception)]
    assert len(kinds) > 8
    assert all(issubclass(kind, HymoError) for kind in kinds)


def test_a_place_opens_the_message():
    assert str(RecipeError("it must hold", "r.yaml:3:5")) == "r.yaml:3:5: it must hold"
    assert RecipeError("it must hold", "r.yaml:3:5").where == "r.yaml:3:5"
    assert str(PatternError("it must hold")) == "it must hold"


def test_a_message_is_one_line_whatever_it_quotes():
    assert str(HymoError("a\nb\x1b[2J\u2028é\ud800")) == r"a\nb\x1b[2J\u2028é\ud800"
    assert str(RecipeError("x", "dir\n.yaml:1:1")) == r"dir\n.yaml:1:1: x"


@pytest.mark.parametrize(
    ("word", "choices", "hint"),
    [
        ("gnd", ["gdn", "mla"], "; did you mean 'gdn'?"),
        ("zzz", ["gdn", "mla"], "; choose from gdn, mla"),
        ("zzz", [], ""),
    ],
)
def test_did_you_mean(word, choices, hint):
    assert did_you_mean(word, choices) == hint
