import json

import pytest

from hymo.cli.common import print_json, split_words
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


def test_json_has_null_for_what_is_not_finite(capsys):
    print_json({"result": {"val/loss": [1.5, float("nan")]}, "bpb": float("-inf"), "runs": ("a", 2)})
    assert json.loads(capsys.readouterr().out) == {"result": {"val/loss": [1.5, None]}, "bpb": None, "runs": ["a", 2]}
