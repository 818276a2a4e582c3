"""`generate`: text from a trained run."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hymo.cli.common import AllowCode, Json, Output, RunName, print_json

if TYPE_CHECKING:
    from hymo.generate import Completion
    from hymo.trained import Trained

app = typer.Typer()
Prompts = Annotated[list[str], typer.Option("--prompt", metavar="TEXT", help="what to go on from; may be given several times")]


@app.command()
def generate(
    run: RunName,
    prompt: Prompts,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="tokens at most (default 256, or what fits)")] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the most probable token; 1 samples what the model says")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="sample from the most probable tokens that reach this probability")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="end before this text; may be given several times")] = None,
    stop_token: Annotated[list[int] | None, typer.Option("--stop-token", metavar="N", help="end before this token; likewise")] = None,
    seed: Annotated[int, typer.Option("--seed", help="seed of the sampling")] = 0,
    longer: Annotated[bool, typer.Option("--longer", help="allow more than model.max_seq_len tokens, prompt included")] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda")] = "auto",
    output: Output = Path("runs"),
    json: Json = False,
    allow_code: AllowCode = False,
) -> None:
    """Write text with a trained run. Each prompt is gone on from at its newest checkpoint. One prompt is written as it comes."""
    from hymo.cli.runs import folder_of
    from hymo.generate import Limits, Sampling
    from hymo.generate import generate as complete
    from hymo.train.device import compute_dtype
    from hymo.train.parallel import find_device
    from hymo.trained import open_trained

    limits = Limits(max_tokens, stop or (), stop_token or (), longer)
    sampling = Sampling(temperature, top_p, seed)
    place = find_device(device)
    opened = open_trained(folder_of(run, output), place, allow_code=allow_code)
    say_unfinished(opened)
    typed = [os.fsencode(text) for text in prompt]      # the bytes, UTF-8 or not
    shown = [text.decode("utf-8", "replace") for text in typed]
    live = len(prompt) == 1 and not json
    unwritten = shown[:1]

    def write(_: int, text: str) -> None:
        typer.echo("".join(unwritten) + text, nl=False)
        unwritten.clear()

    found = complete(
        opened.model,
        opened.tokenizer,
        typed,
        limits,
        sampling,
        dtype=compute_dtype(opened.recipe.train.dtype, place),
        on_text=write if live else None,
    )
    if live:
        typer.echo("".join(unwritten))
    else:
        show(shown, found, json)


def show(prompts: list[str], completions: list[Completion], json: bool) -> None:
    """All completions, when all are there."""
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        if json:
            print_json({"prompt": prompt, **asdict(completion)})
        else:
            typer.echo(f"{'' if number == 0 else chr(10)}--- {number + 1}: {completion.reason} after {len(completion.tokens)} tokens")
            typer.echo(prompt + completion.text)


def say_unfinished(opened: Trained) -> None:
    """A word beside the output when the run has not come to its end."""
    if not opened.finished:
        typer.echo(f"hymo: this run is at step {opened.step:,} of {opened.steps:,}; `hymo resume {opened.folder.name}` goes on with it", err=True)
