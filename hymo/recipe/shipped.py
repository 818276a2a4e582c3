"""Recipes by name: `v1_0` is recipes/v1_0.yaml of a source checkout, or its copy inside an installed hymo (pyproject.toml puts it there)."""

from __future__ import annotations

from pathlib import Path

from hymo.errors import RecipeError, did_you_mean


def folder() -> Path:
    """Where the shipped recipes are."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def names() -> list[str]:
    """Names of the shipped recipes, sorted."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def find(path_or_name: str | Path) -> Path:
    """The file that a user means by a path or by the name of a shipped recipe. Raises RecipeError with a did-you-mean."""
    path = Path(path_or_name)
    text = str(path_or_name)
    if "\0" in text or len(text) > 1024:
        raise RecipeError(f"a recipe must be a path or a name, but got {text[:40]!r}…")
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if not path.is_file():
            raise RecipeError(f"a recipe must be a file that exists, but got {text!r}{did_you_mean(path.stem, names())}")
        return path
    if text not in names():
        raise RecipeError(f"a recipe must be a file or the name of a shipped one, but got {text!r}{did_you_mean(text, names())}")
    return folder() / f"{text}.yaml"
