import pytest

from hymo.cli.common import split_words
from hymo.errors import HymoError


@pytest.mark.parametrize(
    ("words", "name", "overrides"),
    [
        (None, "v1_0", []),
        (["my.yaml"], "my.yaml", []),
        (["model.mtp.depth=1"], "v1_0", ["model.mtp.depth=1"]),
        (["a=1", "my.yaml", "b=2"], "my.yaml", ["a=1", "b=2"]),
        (["a=b=c"], "v1_0", ["a=b=c"]),
    ],
)
def test_a_recipe_and_its_overrides(words, name, overrides):
    assert split_words(words) == (name, overrides)


def test_a_file_may_have_an_equals_sign_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1.yaml").touch()
    assert split_words(["lr=1.yaml", "a=1"]) == ("lr=1.yaml", ["a=1"])


def test_two_recipes_are_refused():
    with pytest.raises(HymoError, match="one recipe is taken, but got 'v1_0' and 'depth'"):
        split_words(["v1_0", "depth"])
