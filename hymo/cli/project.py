"""`init`, `blocks`, `recipes`, `doctor`: what hymo comes with, and what this machine offers it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hymo.cli.common import Json, console, print_json
from hymo.errors import HymoError


class Listed(TyperGroup):
    """A family that does alone what its `list` does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["list", *args] if args[:1] in ([], ["--json"]) else args)


app = typer.Typer()
blocks = typer.Typer(cls=Listed, help="Blocks that a recipe may name; alone, the list of them.")
recipes = typer.Typer(cls=Listed, help="Recipes that ship with hymo; alone, the list of them.")
app.add_typer(blocks, name="blocks")
app.add_typer(recipes, name="recipes")


@app.command()
def init(folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="folder to fill")] = Path()) -> None:
    """Copy recipes and experiments to a folder. The schema that lets an editor check recipes comes with them."""
    import json

    from hymo.ablate.definition import folder as experiments_folder
    from hymo.recipe import json_schema
    from hymo.recipe.shipped import folder as recipes_folder

    copies = {folder / "recipes": recipes_folder(), folder / "experiments": experiments_folder()}
    for target, source in copies.items():
        if target.exists() and target.resolve() != source.resolve():
            raise HymoError(f"init must not overwrite anything, but {str(target)!r} exists; name another folder, or remove it")
        if target.exists():
            raise HymoError(f"init must copy to another place, but {str(target)!r} is where hymo keeps its own; name another folder")
    for target, source in copies.items():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.py", ".*"))
    (folder / "recipe.schema.json").write_text(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
    typer.echo(f"{folder}/ holds recipes, experiments and recipe.schema.json; begin with: hymo run {folder / 'recipes' / 'v1_0.yaml'}")


@blocks.command("list")
def list_blocks(json: Json = False) -> None:
    """List every registered block, by kind."""
    from hymo.block import KINDS
    from hymo.registry import get, names

    found = [(kind, name, get(kind, name)) for kind in KINDS for name in names(kind)]
    rows = [{"kind": kind, "name": name, "does": first_sentence(block.__doc__), "from": block.__module__} for kind, name, block in found]
    show_rows(rows, json)


@recipes.command("list")
def list_recipes(json: Json = False) -> None:
    """List the shipped recipes and their scales."""
    from hymo.recipe import load_recipe, scales, shipped_recipes

    loaded = [(name, load_recipe(name)) for name in shipped_recipes()]
    show_rows([{"name": name, "pattern": recipe.model.pattern, "scales": ", ".join([*scales(name), "full"])} for name, recipe in loaded], json)


def show_rows(rows: list[dict[str, str]], json: bool) -> None:
    """The rows as JSON lines or as a table."""
    from rich.table import Table

    if json:
        for row in rows:
            print_json(row)
        return
    table = Table(*(rows[0] if rows else ()), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row.values())
    console().print(table)


def first_sentence(doc: str | None) -> str:
    """The first paragraph's first line of a docstring."""
    return (doc or "").strip().partition("\n")[0]


@app.command()
def doctor() -> None:
    """Check what this machine offers. Exit code 2 when something stands in the way of a run."""
    wrong = 0
    for name, look in CHECKS.items():
        try:
            found, fine = look(), True
        except (HymoError, ImportError, OSError) as error:
            found, fine, wrong = " ".join(str(error).split()), False, wrong + 1
        typer.echo(f"{'ok ' if fine else 'NO '} {name:12} {found}")
    if wrong:
        raise HymoError(f"everything above must be ok, but {wrong} of {len(CHECKS)} are not; each line says what is missing")


def _python() -> str:
    import platform
    import sys

    return f"{platform.python_version()} at {sys.executable}"


def _torch() -> str:
    import torch

    from hymo.environment import cores

    return f"{torch.__version__}, {torch.get_num_threads()} threads on {cores()} cores"


def _device() -> str:
    from hymo.sizing import describe
    from hymo.train.device import compute_dtype, free_bytes
    from hymo.train.parallel import find_device
    from hymo.units import in_bytes

    device = find_device("auto")
    return f"{describe(device)}, {in_bytes(free_bytes(device))} free, computes in {str(compute_dtype('auto', device)).removeprefix('torch.')}"


def _kernels() -> str:
    from hymo.ops import gated_recurrence, linear_attention, linear_cross_entropy, short_conv, swiglu
    from hymo.train.parallel import find_device

    device = find_device("auto")
    operations = (gated_recurrence, linear_attention, linear_cross_entropy, short_conv, swiglu)
    chosen = (f"{operation.__name__.rpartition('.')[2]} `{operation.resolve_impl('auto', device)}`" for operation in operations)
    return f"{', '.join(chosen)} on {device.type}"


def _blocks() -> str:
    from hymo.block import KINDS
    from hymo.registry import names

    return ", ".join(f"{len(names(kind))} {kind}" for kind in KINDS)


def _tracking() -> str:
    from hymo.tracking import address, client

    store = address("auto")
    found = client(store).search_experiments(max_results=100)
    return f"MLflow at {store}, {len(found)} experiments"


def _data() -> str:
    from hymo.data.cache import cache_dir
    from hymo.units import in_bytes

    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    return f"cache in {cache}, {in_bytes(shutil.disk_usage(cache).free)} free"


def _runs() -> str:
    from hymo.units import in_bytes

    return f"run folders go to {Path.cwd() / 'runs'}, {in_bytes(shutil.disk_usage(Path.cwd()).free)} free"


CHECKS: dict[str, Callable[[], str]] = {
    "python": _python,
    "torch": _torch,
    "device": _device,
    "kernels": _kernels,
    "blocks": _blocks,
    "data": _data,
    "runs": _runs,
    "tracking": _tracking,
}
