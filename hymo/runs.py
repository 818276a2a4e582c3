"""Run folders: where the state of a run lives, and how a run is named on a command line. No MLflow and no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hymo.errors import HymoError, did_you_mean
from hymo.journal import read

JOURNAL, SENT, RECIPE = "journal.jsonl", "sent.json", "recipe.yaml"
LABEL_WIDTH = 80


@dataclass(frozen=True)
class Run:
    """One run folder, read from its journal."""

    folder: Path
    run_id: str | None              # MLflow's id, once it has the run
    started: int                    # ms since 1970
    status: str                     # running, finished, stopped, diverged, failed; "running" also when it was killed; or imported
    step: int
    metrics: dict[str, float]       # the last value of each

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.name


def read_run(folder: Path) -> Run:
    """The run in `folder`, from its journal; an imported one has none, and is as old as its recipe and as far as its checkpoint."""
    if not (folder / JOURNAL).is_file():
        steps = [int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*")]
        return Run(folder, None, (folder / RECIPE).stat().st_mtime_ns // 1_000_000, "imported", max(steps, default=0), {})
    started, status, step = 0, "running", 0
    metrics: dict[str, float] = {}
    for event, _ in read(folder / JOURNAL):
        if event["event"] == "start":
            started, status = started or event["time"], "running"
        elif event["event"] == "finish":
            status = event["status"]
        elif event["event"] == "metrics":
            step = max(step, event["step"])
            metrics.update(event["values"])
    return Run(folder, run_id(folder), started, status, step, metrics)


def run_id(folder: Path) -> str | None:
    """MLflow's id of the run in `folder`, once known."""
    try:
        note = json.loads((folder / SENT).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return str(note["run_id"]) if isinstance(note, dict) and "run_id" in note else None


def folders(output: Path) -> list[Path]:
    """Every run folder below `output`, by name: one with a journal, or one that `hymo import` made, with checkpoints and none."""
    told = {journal.parent for journal in output.glob(f"*/{JOURNAL}")}
    imported = {recipe.parent for recipe in output.glob(f"*/{RECIPE}") if (recipe.parent / "checkpoints").is_dir()}
    return sorted(told | imported)


def list_runs(output: Path) -> list[Run]:
    """Every run below `output`, oldest first."""
    return sorted(map(read_run, folders(output)), key=lambda run: run.started)


def label(name: str, overrides: Sequence[str]) -> str:
    """What MLflow calls a run: its name, then what it changes ("v1_0-tiny-00aa11bb pattern=MG*4"), so that the legend of a chart can be read."""
    text = " ".join([name, *(re.sub(r"^[\w.-]*\.(?=[\w-]+=)", "", change) for change in overrides)])
    return text if len(text) <= LABEL_WIDTH else f"{text[: LABEL_WIDTH - 1]}…"


def find(words: str, output: Path) -> Path | None:
    """The folder of the run that `words` names: a folder, a run's name, an MLflow run id or a unique prefix of one. None when there is none.

    A label counts as its first word. Raises HymoError when several runs fit.
    """
    for folder in (Path(words), output / words, output / words.partition(" ")[0]):
        if (folder / JOURNAL).is_file() or (folder / RECIPE).is_file():
            return folder
    fitting = [folder for folder in folders(output) if words and (folder.name.startswith(words) or (run_id(folder) or "").startswith(words))]
    if len(fitting) > 1:
        raise HymoError(f"a run must be named by an unambiguous prefix, but got {words!r}, which fits {', '.join(f.name for f in fitting)}")
    return fitting[0] if fitting else None


def unknown(words: str, output: Path) -> HymoError:
    """What to say of a run that nobody knows."""
    known = [folder.name for folder in folders(output)]
    return HymoError(f"a run must be one that `hymo runs` lists, a run folder or an MLflow run id, but got {words!r}{did_you_mean(words, known)}")
