"""`search`: let Optuna look for better values of any recipe field, and write the best recipe down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hymo.cli.common import AllowCode, Json, print_json, split_words
from hymo.errors import AblationError

if TYPE_CHECKING:
    from hymo.recipe import Recipe

app = typer.Typer()
StudyFile = Annotated[Path, typer.Option("--study", metavar="FILE", help="what is searched, how, and for how many trials")]
Folder = Annotated[Path, typer.Option("--output", metavar="FOLDER", help="where studies are kept and found again")]


@app.command()
def search(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[best] RECIPE|KEY=VALUE", help="a recipe (default v1_0) and overrides; `best` first writes the best trial's recipe"),
    ] = None,
    study: StudyFile = Path("search/knobs.yaml"),
    trials: Annotated[int | None, typer.Option("--trials", min=1, metavar="N", help="trials in all, instead of the study file's number")] = None,
    trial: Annotated[int | None, typer.Option("--trial", metavar="N", help="with `best`: this trial, where several objectives have a front")] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="with `best`: where to write the recipe (default: best.yaml in the study's folder)")
    ] = None,
    output: Folder = Path("searches"),
    allow_code: AllowCode = False,
    json: Json = False,
) -> None:
    """Search any setting with Optuna. Any number of processes may work on a study until it has its trials. `hymo search best` writes a recipe."""
    from hymo.recipe import dump, load_recipe
    from hymo.search import best_trial, open_study, trial_recipe
    from hymo.search import search as work_on
    from hymo.study import load_study

    base = output / study.stem / "recipe.yaml"
    writes = words is not None and words[:1] == ["best"]
    if writes and len(words or []) > 1:
        raise AblationError(f"`hymo search best` takes its recipe from the study, but got {' '.join((words or [])[1:])}; leave it out")
    if not writes and (trial is not None or write is not None):
        raise AblationError("--trial and --write go with `hymo search best`, but got a search")
    name, overrides = split_words([] if writes else words)

    def at(scale: str) -> Recipe:
        if not writes:
            return load_recipe(name, overrides, scale=scale, allow_code=allow_code)
        if not base.is_file():
            raise AblationError(
                f"a study must have been begun to have a best trial, but got none in {base.parent}; `hymo search --study {study}` begins it"
            )
        return load_recipe(base, allow_code=allow_code)

    opened = load_study(study, at, output, trials)
    if writes:
        found = best_trial(open_study(opened), trial)
        path = write or opened.folder / "best.yaml"
        path.write_text(f"# Trial {found.number} of the study {opened.name}: {found.params}\n{dump(trial_recipe(opened, found.params))}")
        typer.echo(f"trial {found.number} is in {path}: hymo run {path}")
        return
    done = work_on(opened, lambda words: typer.echo(words, err=json))
    if json:
        print_json(
            {
                "study": opened.name,
                "trials": [
                    {"number": one.number, "state": one.state.name.lower(), "values": one.values, "params": one.params} for one in done.trials
                ],
            }
        )
