"""Back-to-back small runs in one process, each with data, training, validation, checkpoints and MLflow; every third is stopped and resumed.

`python soak.py MINUTES` prints memory, file handles, threads and child processes as it goes, and leaves with 1 unless they are flat: the second half
of the time against the quarter before it, for the first quarter warms up.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import psutil
import torch

from hymo.data import open_data
from hymo.recipe import Recipe, load_recipe
from hymo.tracking import MlflowTracker, client
from hymo.train import StepInfo, train

LINES = 20              # of the table
GROWTH_MB = 16.0        # of resident memory that counts as flat: what an allocator keeps differs by this much from run to run


@dataclass(frozen=True)
class Row:
    """What the process and its children hold after a run."""

    minutes: float
    runs: int
    memory_mb: float        # resident, children included
    handles: int
    threads: int
    children: int
    objects: int            # that Python's collector knows


def recipe(folder: Path, seed: int) -> Recipe:
    """The shipped recipe at its smallest scale and smaller."""
    (folder / "text").mkdir(exist_ok=True)
    for i in range(20):
        (folder / "text" / f"{i}.txt").write_text(f"state {i} decays, row {i * i} is read again " * (i % 4 + 1))
    words = ["model.pattern=MG", "train.steps=6", "train.tokens_per_step=256", "run.checkpoint_every=2", "eval.every=3", "eval.tokens=256"]
    words += [f"data.source={folder / 'text'}", "data.validation_frac=0.2", "data.max_epochs=1000", "train.threads=1", "train.device=cpu"]
    return load_recipe("v1_0", [*words, f"run.tracking=sqlite:///{folder / 'mlflow.db'}", f"run.seed={seed}"], scale="tiny")


def one_run(folder: Path, number: int) -> None:
    """Train; every third run is stopped halfway and resumed."""
    made = recipe(folder, number)
    run_dir = folder / "runs" / f"{number:06d}"
    done: list[int] = []

    def on_step(info: StepInfo) -> None:
        done.append(info.step)

    stops = [lambda: len(done) >= 3, lambda: False] if number % 3 == 2 else [lambda: False]
    for part, should_stop in enumerate(stops):
        data = open_data(made)
        tracker = MlflowTracker(made, run_dir)
        result = train(made, run_dir=run_dir, tracker=tracker, data=data, resume=part > 0, on_step=on_step, should_stop=should_stop)
    assert result.status == "finished"
    shutil.rmtree(run_dir)


def measured(began: float, runs: int) -> Row:
    """The row of now."""
    gc.collect()
    here = psutil.Process()
    tree = [here, *here.children(recursive=True)]
    total = sum(process.memory_info().rss for process in tree) / 2**20
    return Row((time.monotonic() - began) / 60, runs, total, here.num_fds(), here.num_threads(), len(tree) - 1, len(gc.get_objects()))


def soak(folder: Path, until: Callable[[float, int], bool]) -> Iterator[Row]:
    """A row after each run, until `until(minutes, runs)`."""
    client(f"sqlite:///{folder / 'mlflow.db'}")
    began, runs = time.monotonic(), 0
    while not until((time.monotonic() - began) / 60, runs):
        one_run(folder, runs)
        runs += 1
        yield measured(began, runs)


def growth(rows: list[Row]) -> dict[str, float]:
    """How much each figure is higher in the second half of the time than in the second quarter."""
    end = rows[-1].minutes
    early = [row for row in rows if end / 4 <= row.minutes < end / 2]
    late = [row for row in rows if row.minutes >= end / 2]
    names = [field.name for field in fields(Row)[2:]]
    return {name: statistics.median(getattr(row, name) for row in late) - statistics.median(getattr(row, name) for row in early) for name in names}


def is_flat(grown: dict[str, float]) -> bool:
    """Whether nothing leaks."""
    return grown["memory_mb"] <= GROWTH_MB and all(grown[name] <= 0 for name in ("handles", "threads", "children"))


def main(minutes: float) -> int:
    """Print the table; 0 when everything is flat."""
    torch.set_num_threads(1)
    print(f"{'minutes':>8} {'runs':>6} {'memory MB':>10} {'handles':>8} {'threads':>8} {'children':>9} {'objects':>9}")
    rows: list[Row] = []
    shown = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for row in soak(Path(folder), lambda spent, runs: spent >= minutes):
            if row.minutes >= shown:
                shown = row.minutes + minutes / LINES
                print("{:8.1f} {:6d} {:10.1f} {:8d} {:8d} {:9d} {:9d}".format(*astuple(row)), flush=True)
            rows.append(row)
    grown = growth(rows)
    print(f"{rows[-1].runs} runs; second half against second quarter: {', '.join(f'{name} {value:+.1f}' for name, value in grown.items())}")
    print("flat" if is_flat(grown) else "NOT flat")
    return 0 if is_flat(grown) else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
