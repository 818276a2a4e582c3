"""`eval`: probe a trained run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hymo.cli.common import AllowCode, Json, Output, RunName, console, print_json
from hymo.errors import ProbeError

if TYPE_CHECKING:
    from hymo.probes.base import Finding, Probe
    from hymo.probes.running import Probed
    from hymo.trained import Trained

app = typer.Typer()
Settings = Annotated[list[str] | None, typer.Argument(metavar="[PROBE.KEY=VALUE]…", help="settings of the probes, such as mqar.examples=1000")]
ENDED = ("finished", "stopped", "diverged", "failed")


@app.command("eval")
def evaluate(
    run: RunName,
    settings: Settings = None,
    probe: Annotated[list[str] | None, typer.Option("--probe", metavar="NAME", help="this probe; may be given several times")] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda")] = "auto",
    output: Output = Path("runs"),
    json: Json = False,
    allow_code: AllowCode = False,
) -> None:
    """Probe a trained run. At its newest checkpoint: recall, needle, induction, loss by position and length. Without --probe: the recipe's
    eval.probes, or all that the run can be asked. Metrics and plots go to the run's MLflow page."""
    from hymo.cli.runs import folder_of
    from hymo.probes.base import Subject
    from hymo.probes.running import Probed, measure, measure_fitting
    from hymo.train.parallel import find_device
    from hymo.trained import open_trained

    options = read_settings(settings or [])
    trained = open_trained(folder_of(run, output), find_device(device), allow_code=allow_code)
    wanted = probe or trained.recipe.eval.probes
    subject = Subject(trained.model, trained.recipe)
    found = Probed(measure(chosen(wanted, options), subject)) if wanted else measure_fitting(subject, options)
    # A metric has one value a step, and the one on record is that of the probe as it is by default.
    where = None if options else record_on(trained, found.findings)
    show(trained, found, where, json)


def probe_finished(folder: Path, device: str, json: bool) -> None:
    """The probes of the recipe, on the run that has just finished in `folder`."""
    from hymo.probes.base import Subject, planned
    from hymo.probes.running import Probed, measure
    from hymo.train.parallel import find_device
    from hymo.trained import open_trained

    trained = open_trained(folder, find_device(device), allow_code=True)     # the training has run that code already
    found = Probed(measure(planned(trained.recipe), Subject(trained.model, trained.recipe)))
    show(trained, found, record_on(trained, found.findings), json)


def read_settings(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`mqar.examples=64` -> {"mqar": {"examples": 64}}; values are YAML, as in recipes."""
    from hymo.recipe.reading import read_text

    found: dict[str, dict[str, Any]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        name, dot, setting = key.partition(".")
        if not (equals and dot and name and setting):
            raise ProbeError(f"a probe's setting must be written PROBE.KEY=VALUE, but got {word!r}; for example mqar.examples=1000")
        found.setdefault(name, {})[setting] = read_text(text, None).value
    return found


def chosen(names: Sequence[str], options: dict[str, dict[str, Any]]) -> list[Probe]:
    """The probes of these names, each once, with their settings."""
    from hymo.probes.base import open_probe

    stray = next((name for name in options if name not in names), None)
    if stray:
        raise ProbeError(f"settings must be those of a probe that is made, but got {stray!r}; add --probe {stray}")
    return [open_probe(name, options.get(name)) for name in dict.fromkeys(names)]


def record_on(trained: Trained, findings: Sequence[Finding]) -> str | None:
    """Put the findings on the run's record and return its MLflow page. A run that has not ended writes its own record, and is left alone."""
    from hymo.probes.running import record
    from hymo.runs import JOURNAL, read_run
    from hymo.tracking import MlflowTracker

    if not (trained.folder / JOURNAL).is_file() or (status := read_run(trained.folder).status) not in ENDED:
        return None
    tracker = MlflowTracker(trained.recipe, trained.folder)
    tracker.start()
    record(findings, trained.step, tracker, trained.folder)
    tracker.finish(status)
    return tracker.link


def show(trained: Trained, found: Probed, where: str | None, json: bool) -> None:
    """A table for each probe, or one JSON object."""
    from hymo.probes.report import plain, table

    if json:
        print_json({
            "run": trained.folder.name, "step": trained.step, "probes": {one.probe: plain(one) for one in found.findings},
            "left_out": found.left_out, "mlflow": where,
        })  # fmt: skip
        return
    out = console()
    out.print(f"{trained.folder.name} at step {trained.step:,} of {trained.steps:,}", markup=False)
    for one in found.findings:
        summary = ", ".join(f"{name} {value:.4f}" for name, value in one.summary.items())
        out.print(f"\n{one.probe}: {summary}\n  {one.setting}", markup=False)
        out.print(table(one))
        if one.beyond:
            out.print(f"  * rows longer than the {trained.recipe.train.seq_len:,} tokens of training", markup=False)
    for name, reason in found.left_out.items():
        out.print(f"\n{name} is left out: {reason}", markup=False)
    if where:
        out.print(f"\nMLflow run: {where}", markup=False, soft_wrap=True)
