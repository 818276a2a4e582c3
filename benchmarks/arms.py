"""Arms of an ablation per hour on one device: one run after another, against several at a time.

    python benchmarks/arms.py [--experiment gdn_decay_gate] [--scale proxy] [--jobs 8] [--alone 4] [KEY=VALUE …]

Both sides are `hymo ablate` itself, each in a store of its own: `--alone` runs with `--jobs 1`, and `--jobs` runs at once. What is counted is the
whole of it, from the command to its table: processes, data, training, validation, report. An experiment of one arm makes two runs a seed, and two
seeds are the fewest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from hymo.ablate.definition import load


def arms_per_hour(experiment: str, scale: str, jobs: int, runs: int, overrides: list[str]) -> float:
    """Rate of one `hymo ablate` of so many runs."""
    with tempfile.TemporaryDirectory() as store:
        command = [
            sys.executable, "-m", "hymo", "ablate", experiment, *overrides, "run.tracking=none", "--scale", scale, "--seeds", str(runs // 2),
            "--jobs", str(jobs), "--store", store, "--json",
        ]
        log = Path(store, "log")
        began = time.perf_counter()
        with log.open("w") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{log.read_text()[-3000:]}")
    rate = runs / seconds * 3600
    print(f"--jobs {jobs}: {runs} runs in {seconds:.1f} s, {rate:,.0f} arms an hour", flush=True)
    return rate


def warm_up(experiment: str, scale: str, overrides: list[str]) -> None:
    """One short run of the baseline, so that neither side trains the tokenizer, compiles kernels or reads files for the first time."""
    base = str(load(experiment).base)
    with tempfile.TemporaryDirectory() as store:
        settings = [*overrides, "--scale", scale, "train.steps=2", "run.tracking=none", f"run.output={store}"]
        subprocess.run([sys.executable, "-m", "hymo", "run", base, *settings], capture_output=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, as `hymo ablate` takes them")
    parser.add_argument("--experiment", default="gdn_decay_gate")
    parser.add_argument("--scale", default="proxy")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--alone", type=int, default=4, help="runs to time one after another")
    asked = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(f"{device}, torch {torch.__version__}, {asked.experiment} at scale {asked.scale} {' '.join(asked.overrides)}", flush=True)
    warm_up(asked.experiment, asked.scale, asked.overrides)
    alone = arms_per_hour(asked.experiment, asked.scale, 1, asked.alone, asked.overrides)
    together = arms_per_hour(asked.experiment, asked.scale, asked.jobs, asked.jobs, asked.overrides)
    print(f"{together / alone:.2f} times as many arms an hour with --jobs {asked.jobs}")


if __name__ == "__main__":
    main()
