"""`data prepare`, `data info`, `tokenizer train`: what a recipe reads."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hymo.cli.common import AllowCode, Json, Scale, Words, console, load, print_json
from hymo.errors import HymoError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

app = typer.Typer()
data = typer.Typer(no_args_is_help=True, help="Look at and prepare the text of a recipe.")
tokenizer = typer.Typer(no_args_is_help=True, help="Train a tokenizer.")
app.add_typer(data, name="data")
app.add_typer(tokenizer, name="tokenizer")
Tokens = Annotated[int | None, typer.Option(min=0, help="stop this side of the split after so many tokens (a stream needs it)")]


@data.command()
def info(words: Words = None, scale: Scale = None, json: Json = False, allow_code: AllowCode = False) -> None:
    """Open the data of a recipe and say what is in it. Text is tokenised once, into the cache."""
    from hymo.data import open_data

    opened = open_data(load(words, scale, allow_code))
    if json:
        print_json({**opened.summary, "fingerprint": opened.fingerprint, "train_tokens": opened.train_tokens})
        return
    shown = {"fingerprint": opened.fingerprint, **opened.summary}
    width = max(map(len, shown))
    for name, value in shown.items():
        typer.echo(f"{name:{width}}  {value:,}" if isinstance(value, int) else f"{name:{width}}  {value}")


@data.command()
def prepare(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="folder to make; `data.source=FOLDER` reads it")],
    words: Words = None,
    scale: Scale = None,
    train_tokens: Tokens = None,
    validation_tokens: Tokens = None,
    allow_code: AllowCode = False,
) -> None:
    """Write the text of a recipe as memory-mapped token shards."""
    from hymo.data.prepare import prepare as write

    recipe = load(words, scale, allow_code)
    with counting() as progress:
        meta = write(recipe.data, out, train_tokens=train_tokens, validation_tokens=validation_tokens, progress=progress)
    typer.echo(f"wrote {out}: {meta.source}, {meta.tokenizer} of {meta.vocab_size:,}; train on it with: hymo run data.source={out}")


@tokenizer.command()
def train(
    vocab_size: Annotated[int, typer.Option("--vocab-size", min=257, max=2**24, help="entries: 256 bytes, <|endoftext|>, and the merges")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="tokenizer.json to write; `data.tokenizer=FILE` uses it")],
    words: Words = None,
    scale: Scale = None,
    max_bytes: Annotated[int | None, typer.Option("--max-bytes", min=1, help="text to read at most (default 256 MiB)")] = None,
    allow_code: AllowCode = False,
) -> None:
    """Train a byte-level BPE on the training text of a recipe: every byte has a token, nothing is unknown."""
    from hymo.data.prepare import open_sides
    from hymo.data.train_tokenizer import MAX_BYTES, save_tokenizer, train_tokenizer

    if out.exists():
        raise HymoError(f"the tokenizer's file must be new, but {str(out)!r} exists; name another, or remove it")
    sides = open_sides(load(words, scale, allow_code).data)
    trained = train_tokenizer(sides.train(), vocab_size, max_bytes=max_bytes or MAX_BYTES)
    save_tokenizer(trained, out)
    typer.echo(f"wrote {out}: {trained.vocab_size:,} entries from {sides.train_source.name}; use it with: data.tokenizer={out}")


@contextmanager
def counting() -> Iterator[Callable[[int, int], None] | None]:
    """A live count of documents and tokens on a terminal; nothing elsewhere."""
    out = console()
    if not out.is_terminal:
        yield None
        return
    with out.status("reading …") as status:
        yield lambda documents, tokens: status.update(f"{documents:,} documents, {tokens:,} tokens")
