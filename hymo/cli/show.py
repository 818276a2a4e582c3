"""`show`: the stack that a recipe resolves to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hymo.cli.common import AllowCode, Scale, Words, console, load

if TYPE_CHECKING:
    from hymo.recipe import ResolvedLayer

app = typer.Typer()
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="write a page with the cost of every layer instead")]


@app.command()
def show(words: Words = None, scale: Scale = None, html: Html = None, allow_code: AllowCode = False) -> None:
    """Draw the resolved stack, layer by layer. What an override changed is marked."""
    from rich.table import Table

    from hymo.cost import count
    from hymo.figures.stack import changes, settings, write_page
    from hymo.recipe import resolve_stack

    recipe = load(words, scale, allow_code)
    if html is not None:
        write_page(recipe, html)
        typer.echo(f"wrote {html}")
        return
    model, layers, cost = recipe.model, resolve_stack(recipe.model), count(recipe)
    out = console()
    out.print(f"[bold]{recipe.name}[/]  {model.pattern}  {len(layers)} layers, d_model {model.d_model}")
    for symbol in dict.fromkeys(layer.info.symbol for layer in layers):
        kind = model.layers[symbol]
        blocks = [settings(block) for block in (kind.mixer, kind.ffn) if block.type != "none"]
        out.print(f"  {symbol} = {' + '.join(blocks)}", soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False)
    for title in ("layer", "name", "mixer", "ffn", "active", "stored", "overridden"):
        table.add_column(title, justify="right" if title in ("active", "stored") else "left")
    table.add_row("", "", f"embedding {model.vocab_size:,} x {model.d_model}", style="dim")
    for first, last in folded(layers):
        layer, price, written = layers[first], cost.layers[first], model.layers[layers[first].info.symbol]
        times = f" x {last - first + 1}" if last > first else ""
        changed = [*changes("mixer", written.mixer, layer.mixer), *changes("ffn", written.ffn, layer.ffn)]
        table.add_row(
            f"{first}-{last}" if times else f"{first}",
            f"{layer.info.name}-{layers[last].info.name}" if times else layer.info.name,
            layer.mixer.type,
            "" if layer.ffn.type == "none" else layer.ffn.type,
            f"{price.active:,}{times}",
            f"{price.stored:,}{times}",
            f"* {', '.join(layer.overridden)}: {', '.join(changed) or 'no change'}" if layer.overridden else "",
            style="yellow" if layer.overridden else None,
        )
    table.add_row("", "", f"norm, {'tied' if model.tie_embeddings else 'own'} head, softcap {model.softcap:g}", style="dim")
    out.print(table)
    out.print(f"  heads = {settings(model.mtp)}", soft_wrap=True, markup=False)
    out.print(f"{cost.active:,} parameters active of {cost.stored:,}")


def folded(layers: list[ResolvedLayer]) -> list[tuple[int, int]]:
    """First and last of each run of layers that are built alike."""
    runs: list[tuple[int, int]] = []
    for i, layer in enumerate(layers):
        alike = i > 0 and identity(layers[i - 1]) == identity(layer)
        runs[-1:] = [(runs[-1][0], i)] if alike else [*runs[-1:], (i, i)]
    return runs


def identity(layer: ResolvedLayer) -> tuple[object, ...]:
    """What makes two layers alike: everything but their place."""
    return layer.info.symbol, layer.mixer, layer.ffn, layer.overridden
