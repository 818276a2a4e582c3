"""`ablate` and `results`: run experiments against their baseline, and read what finished ones say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hymo.cli.common import Json, Scale, print_json
from hymo.errors import AblationError
from hymo.units import parse_time

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer()
Words = Annotated[
    list[str], typer.Argument(metavar="EXPERIMENT|KEY=VALUE", help="shipped names, or folders with an ablation.yaml; overrides of their base")
]
StoreFolder = Annotated[Path, typer.Option("--store", metavar="FOLDER", help="where runs and results are kept and found again")]
WITHIN = "20m"
PIPE_WIDTH = 160


@app.command()
def ablate(
    words: Words,
    scale: Scale = None,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="seeds of each arm, paired; the most of them with --until")] = 3,
    arms: Annotated[str, typer.Option("--arms", metavar="A,B", help="only these arms")] = "",
    within: Annotated[str, typer.Option("--within", metavar="TIME", help="time the whole ablation may take at the scale that is chosen")] = WITHIN,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, metavar="N", help="runs at a time (default: one a CPU core, or one on a GPU)")] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, metavar="N", help="CPU threads of each run, whatever --jobs")] = 1,
    on: Annotated[str, typer.Option("--on", metavar="ENGINE", help="local, or ray, or ray:ADDRESS")] = "local",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="resolve, match and price everything, and run nothing")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="run again what the store has")] = False,
    aa: Annotated[bool, typer.Option("--aa", help="add the baseline with other initial weights: the noise floor")] = False,
    cross: Annotated[bool, typer.Option("--cross", help="the factorial of two experiments, with the interaction")] = False,
    until: Annotated[str | None, typer.Option("--until", metavar="decided", help="stop at the first planned look that decides every arm")] = None,
    looks: Annotated[str | None, typer.Option("--looks", metavar="3,5,…", help="numbers of seeds at which --until looks, fixed in advance")] = None,
    tune: Annotated[str | None, typer.Option("--tune", metavar="lr[:0.5,1,2]", help="try factors of the learning rate for every arm first")] = None,
    store: StoreFolder = Path("ablations"),
    json: Json = False,
) -> None:
    """Put questions to architectures. The baseline runs once, every arm against it; a table at the end says what may be concluded."""
    from hymo.ablate.command import Options, run

    options = Options(
        words=words,
        scale=scale,
        seeds=seeds,
        arms=[name for name in arms.split(",") if name],
        within=parse_time(within),
        jobs=jobs,
        threads=threads,
        on=on,
        dry_run=dry_run,
        fresh=fresh,
        aa=aa,
        cross=cross,
        looks=planned_looks(until, looks, seeds),
        rates=planned_rates(tune),
        store=store,
    )
    result = run(options, screen(json))
    if json and result is not None:
        print_json(result)


@app.command()
def results(
    name: Annotated[str | None, typer.Argument(metavar="EXPERIMENT", help="show this one's table; all are listed without it")] = None,
    report: Annotated[bool, typer.Option("--report", help="write its report anew and say where it is")] = False,
    store: StoreFolder = Path("ablations"),
    json: Json = False,
) -> None:
    """List finished ablations and their verdicts."""
    from hymo.ablate import listing

    found = listing.results(name, report, store, screen(json))
    if json:
        print_json(found)


def screen(json: bool) -> Console:
    """Where words and tables go: beside the JSON, never into it; in a pipe, as wide as the tables are."""
    from rich.console import Console

    found = Console(stderr=json, highlight=False)
    if not found.is_terminal:
        found.width = PIPE_WIDTH
    return found


def planned_looks(until: str | None, looks: str | None, seeds: int) -> list[int]:
    """The numbers of seeds after which to judge; empty for once, at the end."""
    if until is None:
        if looks is not None:
            raise AblationError(f"--looks goes with --until decided, but got {looks=} alone; looking as one likes finds effects that are not there")
        return []
    if until != "decided":
        raise AblationError(f"--until must be 'decided', but got {until!r}")
    if looks is None:
        return [look for look in (3, 5, 8, 12, 20) if look < seeds] + [seeds]
    try:
        found = [int(look) for look in looks.split(",")]
    except ValueError:
        raise AblationError(f"--looks must be numbers of seeds, but got {looks!r}; for example 3,5,8") from None
    if found[-1] != seeds:
        raise AblationError(f"the last look must be at --seeds, but got looks {looks} and {seeds=}; give --seeds {found[-1]}")
    return found


def planned_rates(tune: str | None) -> tuple[float, ...]:
    """The factors of the learning rate to try; empty for none."""
    if tune is None:
        return ()
    from hymo.ablate.adjust import check_factors

    what, _, factors = tune.partition(":")
    if what != "lr":
        raise AblationError(
            f"--tune must be lr, the one setting that every arm may need its own of, but got {tune!r}; `hymo search` looks for others"
        )
    try:
        return check_factors([float(factor) for factor in factors.split(",")] if factors else [0.5, 1.0, 2.0])
    except ValueError:
        raise AblationError(f"--tune lr:… must be factors of the learning rate, but got {factors!r}; for example lr:0.5,1,2") from None
