"""`count-params` and `schema`: what a recipe costs, and what one may say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hymo.cli.common import AllowCode, Json, Scale, Words, console, load, print_json
from hymo.units import in_bytes, si

if TYPE_CHECKING:
    from hymo.cost import Cost
    from hymo.recipe import Recipe

app = typer.Typer()


@app.command("count-params")
def count_params(words: Words = None, scale: Scale = None, json: Json = False, allow_code: AllowCode = False) -> None:
    """Count parameters, FLOPs, state and memory. Nothing of the model is allocated."""
    from hymo.cost import count, memory

    recipe = load(words, scale, allow_code)
    cost, parts = count(recipe), memory(recipe, micro_batch=1, device="cpu")
    if json:
        print_json({**asdict(cost), "memory_bytes": parts})
        return
    print_cost(recipe, cost, parts)


def print_cost(recipe: Recipe, cost: Cost, parts: dict[str, int]) -> None:
    """The table by component, then a line for each thing that a whole model has one of."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("component")
    for title in ("active", "stored", "share", "training FLOPs/token"):
        table.add_column(title, justify="right")
    train = cost.flops_per_token_train / cost.flops_per_token_forward  # one owner of the factor: hymo/cost.py
    for row in cost.components:
        table.add_row(row.name, f"{row.active:,}", f"{row.stored:,}", f"{row.stored / cost.stored:.1%}", si(row.flops_per_token_forward * train))
    table.add_row("total", f"{cost.active:,}", f"{cost.stored:,}", "100%", si(cost.flops_per_token_train), style="bold")
    out = console()
    out.print(table)
    whole = si(cost.flops_per_token_train_square, "FLOPs/token")
    out.print(f"\nat T = {cost.context:,}; causal attention is half of a square (as a whole one: {whole})")
    out.print(f"decoding, per sequence: {in_bytes(cost.kv_bytes)} of key-value cache, {in_bytes(cost.state_bytes)} of recurrent state")
    listed = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items())
    out.print(f"training, one row a device: {in_bytes(sum(parts.values()))} ({listed})")


@app.command()
def schema(
    output: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="file to write; by default it is printed")] = None,
) -> None:
    """Write the JSON schema of recipes. An editor completes and checks recipes with it."""
    import json

    from hymo.recipe import json_schema

    text = json.dumps(json_schema(), indent=2, ensure_ascii=False)
    if output is None:
        typer.echo(text)
        return
    output.write_text(text + "\n")
    typer.echo(f"wrote {output}; the first line of a recipe names it: # yaml-language-server: $schema={output}")
