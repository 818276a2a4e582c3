"""`export` and `import`: a run as a folder for other tools, and back."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated

import typer

from hymo.cli.common import AllowCode, Output, RunName
from hymo.errors import HymoError

app = typer.Typer()
FORMATS = ("hf",)


@app.command("export")
def export_run(
    run: RunName,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder to make")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="hf: a folder that transformers loads")] = "hf",
    output: Output = Path("runs"),
    allow_code: AllowCode = False,
) -> None:
    """Write a run, at its newest checkpoint, as a folder that transformers loads without hymo."""
    from hymo.cli.generate import say_unfinished
    from hymo.cli.runs import folder_of
    from hymo.export import export_run as write
    from hymo.trained import open_trained

    if to not in FORMATS:
        raise HymoError(f"--to must be one of {', '.join(FORMATS)}, but got {to!r}")
    opened = open_trained(folder_of(run, output), allow_code=allow_code)
    say_unfinished(opened)
    write(opened, folder)
    typer.echo(f"wrote {folder}; load it with:")
    for auto in ("AutoModelForCausalLM", "AutoTokenizer"):
        typer.echo(f"  {auto}.from_pretrained({str(folder)!r}, trust_remote_code=True)")


@app.command("import")
def import_run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder that `hymo export` wrote")],
    output: Output = Path("runs"),
    allow_code: AllowCode = False,
) -> None:
    """Make a run folder of an exported one: to sample from, probe and export again."""
    from hymo.export.restore import import_folder

    target = output / f"{folder.resolve().name}-imported-{uuid.uuid4().hex[:8]}"
    import_folder(folder, target, allow_code=allow_code)
    typer.echo(f"made {target}; for example: hymo generate {target.name} --prompt …")
