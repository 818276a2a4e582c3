"""Tokens per second and peak memory of an arm, from a short run alone on the device: `python -m hymo.ablate.measure STORE KEY`.

A speed read off a shared device would say more about the neighbours than about the arm. The process takes the device's lock for itself, which the
workers of every command on the store share while they train, and runs a handful of steps in a process of its own, so that memory is its own too.
Other programs do not know that lock. On a CPU they show: the process gets less of the processor than a step takes. Such a speed is said to be
untrustworthy, and the next command measures it again.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hymo.ablate.engine import worker_environment
from hymo.ablate.store import RunSpec, Store, read_json, write_json

if TYPE_CHECKING:
    from hymo.recipe import Recipe
    from hymo.train import StepInfo

WARM_STEPS, STEPS, LEAST_S, MOST_STEPS = 3, 6, 2.0, 60
ALONE = 0.9  # share of the processor from which a speed counts as measured alone


def measured(store: Store, spec: RunSpec) -> dict[str, float]:
    """{"tokens_per_s", "bytes_peak", "processor"} of the run's arm, measured now unless the store knows. Empty when the arm does not run at all.

    processor: share of the time that the process was let compute while it was measured; 1 on a GPU.
    """
    if not is_known(store, spec.key):
        store.write_spec(spec)
        subprocess.run(
            [sys.executable, "-m", "hymo.ablate.measure", str(store.root), spec.key], env=worker_environment(), capture_output=True, check=False
        )
    found: dict[str, float] = read_json(store.speed(spec.key)) or {}
    return found


def is_known(store: Store, key: str) -> bool:
    """Whether the store holds the arm's speed, measured alone."""
    found: dict[str, float] | None = read_json(store.speed(key))
    return found is not None and found.get("processor", 1.0) >= ALONE


def main() -> None:
    """Measure one run of the store."""
    root, key = sys.argv[1:]
    store = Store(Path(root))
    with store.device(alone=True):
        if not is_known(store, key):
            write_json(store.speed(key), measure(store.spec(key)))


def measure(spec: RunSpec) -> dict[str, float]:
    """Train a few steps in a folder that is thrown away; the median of the steps after the first ones counts."""
    import torch

    from hymo.recipe import recipe_from_dict
    from hymo.train import train
    from hymo.train.device import peak_bytes
    from hymo.train.parallel import find_device

    torch.set_num_threads(spec.threads)
    recipe = short(recipe_from_dict(spec.recipe, allow_code=True))
    device = find_device(recipe.train.device)
    held = peak_bytes(device)  # by Python and torch, before there is a model
    seconds: list[float] = []
    peak = 0.0
    clocks: list[tuple[float, float]] = []  # (seconds, seconds of computing) at the end of every step from the last warm one on

    def on_step(info: StepInfo) -> None:
        nonlocal peak
        if info.step >= WARM_STEPS:
            clocks.append((time.perf_counter(), time.process_time()))
        if info.step > WARM_STEPS:
            seconds.append(info.seconds)
        peak = max(peak, info.metrics["memory/bytes_peak"])

    with tempfile.TemporaryDirectory(prefix="hymo-measure-") as folder:
        train(recipe, run_dir=Path(folder), on_step=on_step, should_stop=lambda: len(seconds) >= STEPS and sum(seconds) >= LEAST_S)
    passed, computed = (last - first for first, last in zip(clocks[0], clocks[-1], strict=True))
    return {
        "tokens_per_s": recipe.train.tokens_per_step / statistics.median(seconds),
        "bytes_peak": peak - held,
        "processor": min(1.0, computed / passed) if device.type == "cpu" else 1.0,
    }


def short(recipe: Recipe) -> Recipe:
    """The recipe with a budget of a few steps, one held-out row, and no checkpoint on the way."""
    train = recipe.train.model_copy(update={"tokens": None, "steps": MOST_STEPS})
    held_out = recipe.eval.model_copy(update={"every": MOST_STEPS, "tokens": recipe.train.seq_len})
    run = recipe.run.model_copy(update={"checkpoint_every": MOST_STEPS, "tracking": "none"})
    data = recipe.data.model_copy(update={"max_epochs": float("1e9")})
    return recipe.model_copy(update={"train": train, "eval": held_out, "run": run, "data": data})


if __name__ == "__main__":
    main()
