"""`plot`: pictures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hymo.cli.common import Json, Output, print_json
from hymo.errors import HymoError

app = typer.Typer()


@app.command()
def plot(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="one run, or several in one picture: folders, names, or MLflow run ids")],
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="folder of the pictures (default: RUN/pictures, or ./pictures)")] = None,
    output: Output = Path("runs"),
    json: Json = False,
) -> None:
    """Draw the pictures of runs. Loss, gradient norm, expert load, loss by position, half-lives: as PNG and on each run's MLflow page."""
    from hymo.cli.runs import folder_of
    from hymo.figures.run import write_pictures
    from hymo.figures.story import read_story
    from hymo.figures.style import COLOURS
    from hymo.runs import read_run
    from hymo.tracking import attach

    folders = [folder_of(run, output) for run in runs]
    if len(folders) > len(COLOURS):
        raise HymoError(f"a picture holds {len(COLOURS)} runs at most, or their colours repeat, but got {len(folders)}; draw fewer")
    stories = [read_story(folder, colour=colour) for folder, colour in zip(folders, COLOURS, strict=False)]
    if untold := [story.name for story in stories if not story.metrics]:
        raise HymoError(f"a run must have trained to be drawn, but got {untold[0]!r}, which has told nothing yet")
    files = write_pictures(stories, to or (folders[0] / "pictures" if len(folders) == 1 else Path("pictures")))
    ended = [folder for folder in folders if read_run(folder).status != "running"]      # one that goes on writes its own record
    pages = [attach(folder, files, "pictures") for folder in ended]
    if json:
        print_json({"pictures": [str(path) for path in files], "mlflow": pages})
        return
    for path in files:
        typer.echo(path)
    for page in filter(None, pages):
        typer.echo(f"MLflow run: {page}")
