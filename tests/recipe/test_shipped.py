import pytest

from hymo.errors import RecipeError
from hymo.recipe import shipped


def test_v1_0_is_found_by_name():
    assert "v1_0" in shipped.names()
    assert shipped.find("v1_0").name == "v1_0.yaml"
    assert shipped.find("v1_0").is_file()


def test_an_installed_hymo_carries_its_own_copy(tmp_path, monkeypatch):
    package = tmp_path / "hymo"
    (package / "recipe").mkdir(parents=True)
    monkeypatch.setattr(shipped, "__file__", str(package / "recipe" / "shipped.py"))
    assert shipped.folder() == tmp_path / "recipes"
    (package / "_recipes").mkdir()
    (package / "_recipes" / "mine.yaml").write_text("name: mine\n")
    assert shipped.folder() == package / "_recipes"
    assert shipped.names() == ["mine"]


def test_a_path_is_a_path(recipe_file):
    assert shipped.find(recipe_file) == recipe_file
    assert shipped.find(str(recipe_file)) == recipe_file


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v1_O", "must be a file or the name of a shipped one, but got 'v1_O'; did you mean 'v1_0'?"),
        ("v1_O.yaml", "must be a file that exists, but got 'v1_O.yaml'; did you mean 'v1_0'?"),
        ("../v1_0", "must be a file that exists"),
        ("a\0b", "a path or a name"),
        ("x" * 5000, "a path or a name"),
        ("", "a file or the name"),
    ],
)
def test_what_is_neither_is_refused(text, says):
    with pytest.raises(RecipeError) as caught:
        shipped.find(text)
    assert says in str(caught.value)
