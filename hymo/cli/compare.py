"""`compare`: any runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hymo.cli.common import AllowCode, Json, Output, console, print_json

app = typer.Typer()


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="run folders, names, or MLflow run ids; an ablation's runs by their key")],
    output: Output = Path("runs"),
    store: Annotated[Path, typer.Option("--store", metavar="FOLDER", help="where ablations keep their runs")] = Path("ablations"),
    allow_code: AllowCode = False,
    json: Json = False,
) -> None:
    """Say what differs between runs. Resolved recipes and results are compared."""
    from hymo.ablate.compare import compare as held_against
    from hymo.ablate.compare import comparison_table
    from hymo.cli.runs import folder_of
    from hymo.runs import find

    found = held_against([find(run, store / "runs") or folder_of(run, output) for run in runs], allow_code)
    if json:
        print_json(found)
    else:
        console().print(comparison_table(found))
