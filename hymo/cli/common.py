"""What several commands share: the words that name a recipe, and how results are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hymo.errors import HymoError

if TYPE_CHECKING:
    from rich.console import Console

    from hymo.recipe import Recipe

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE|KEY=VALUE", help="a recipe's file or shipped name (default v1_0), then overrides such as model.mtp.depth=1"),
]
Scale = Annotated[str | None, typer.Option("--scale", metavar="NAME", help="one of the recipe's `scales`, or `full` for the recipe as written")]
Json = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="let the recipe import its own block files from outside this folder: they are code")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="MLflow run id or a unique prefix of it, a run's name, or its folder")]
Output = Annotated[Path, typer.Option("--output", metavar="FOLDER", help="where run folders are")]

DEFAULT_RECIPE, PIPE_WIDTH = "v1_0", 240


def split_words(words: list[str] | None) -> tuple[str, list[str]]:
    """`recipe a=1 b=2` -> ("recipe", ["a=1", "b=2"]); without a recipe the shipped v1_0."""
    words = list(words or [])
    names = [word for word in words if "=" not in word or Path(word).is_file()]
    if len(names) > 1:
        raise HymoError(f"one recipe is taken, but got {' and '.join(map(repr, names))}; an override is written KEY=VALUE")
    return (names[0] if names else DEFAULT_RECIPE), [word for word in words if word not in names]


def load(words: list[str] | None, scale: str | None, allow_code: bool = False) -> Recipe:
    """The recipe that the words of a command line name."""
    from hymo.recipe import load_recipe

    name, overrides = split_words(words)
    recipe = load_recipe(name, overrides, scale=scale, allow_code=allow_code)
    warn_of_scale(name, scale)
    return recipe


def warn_of_scale(name: str, scale: str | None) -> None:
    """Say on stderr what an inherited scale makes of the recipe's own settings."""
    from hymo.recipe import replaced

    if changes := replaced(name, scale):
        said = f"scale {scale}, which {name} inherits, replaces {', '.join(changes)}"
        typer.echo(f"{said}; to keep your own, override it or give {name} that scale", err=True)


def console() -> Console:
    """Rich's console on stdout. A pipe has no width, so nothing is cut there."""
    from rich.console import Console

    out = Console(highlight=False, emoji=False)  # `before:M:` is no emoji
    return out if out.is_terminal else Console(highlight=False, emoji=False, width=PIPE_WIDTH)


def print_json(value: Any) -> None:
    """One JSON object on stdout. JSON has no NaN: a number that is not finite is null."""
    from hymo.display import finite

    typer.echo(json.dumps(finite(value), ensure_ascii=False, allow_nan=False))
