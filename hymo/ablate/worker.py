"""The process that computes: `python -m hymo.ablate.worker STORE WORK SESSION`. It claims one run after another until none is left.

Everything a run needs stands in its spec.json, so that a worker may be any process, on any host that sees the store.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hymo.ablate.store import Outcome, RunSpec, Status, Store
from hymo.errors import AblationError, BudgetError
from hymo.files import write_whole

if TYPE_CHECKING:
    from hymo.data import Data
    from hymo.recipe import Recipe
    from hymo.train import StepInfo, TrainResult

WAIT_S = 0.5  # between looks at a run that another process holds
CURVE_POINTS = 200
LAST_FRAC = 0.1  # training metrics are the mean over this last share of the steps
MEASURED = ("speed/", "memory/", "progress/")


def main() -> None:
    """Work until every run of the work file has an outcome, or a failure in this session."""
    root, work, session = sys.argv[1:]
    parent = os.getppid()
    keys = json.loads(Path(work).read_text())
    store = Store(Path(root))
    work_on(store, keys, session, should_stop=lambda: os.getppid() != parent)


def work_on(store: Store, keys: Sequence[str], session: str, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Claim and compute `keys`, in order; wait for those that others hold, and take them over when their holder dies."""
    left = list(keys)
    while left and not should_stop():
        left = [key for key in left if store.resolved(key, session) is None]
        if not any(_claimed_and_done(store, key, session, should_stop) for key in left):
            time.sleep(WAIT_S if left else 0)


def _claimed_and_done(store: Store, key: str, session: str, should_stop: Callable[[], bool]) -> bool:
    """Compute the run unless another process holds it, or it was finished in the meantime. True when this call computed."""
    with store.claim(key) as mine:
        if not mine or store.resolved(key, session) is not None:
            return False
        with store.device(alone=False):
            compute(store, store.spec(key), session, should_stop)
        return True


def compute(store: Store, spec: RunSpec, session: str, should_stop: Callable[[], bool]) -> None:
    """Train one run from its last checkpoint, if there is one, and put its outcome or failure on record. Whatever fails, the next run can go on."""
    import torch

    began = time.perf_counter()
    try:
        outcome = train_spec(store, spec, should_stop)
        if outcome is not None:
            store.write_outcome(spec.key, Outcome(**{**vars(outcome), "seconds": time.perf_counter() - began}))
    except (MemoryError, torch.OutOfMemoryError, BudgetError) as error:
        store.write_failure(spec.key, session, Status.OUT_OF_MEMORY, _first_line(error))
    except Exception as error:  # one arm's fault, whatever it is, must not stop the others; the traceback stays with the run
        (store.run(spec.key) / "error.txt").write_text(traceback.format_exc())
        memory = "can't allocate memory" in str(error) or "not enough memory" in str(error)
        store.write_failure(spec.key, session, Status.OUT_OF_MEMORY if memory else Status.FAILED, _first_line(error))


def train_spec(store: Store, spec: RunSpec, should_stop: Callable[[], bool]) -> Outcome | None:
    """The outcome of the run; None when it was asked to stop, its checkpoint saved."""
    import torch

    from hymo.data import open_data
    from hymo.recipe import dump, recipe_from_dict
    from hymo.tracking import MlflowTracker
    from hymo.train import train

    torch.set_num_threads(spec.threads)
    recipe = recipe_from_dict(spec.recipe, allow_code=True)
    data = open_data(recipe)
    _check_same(recipe, spec, data.fingerprint)
    # Only the initial weights' seed differs in an A/A arm: its data were opened with the run's own.
    seeded = recipe.model_copy(update={"run": recipe.run.model_copy(update={"seed": spec.init_seed})})
    folder = store.run(spec.key)
    write_whole(folder / "recipe.yaml", dump(seeded))
    result = train(
        seeded,
        run_dir=folder,
        tracker=MlflowTracker(seeded, folder, parent=Path(spec.above), name=spec.name, tags={"hymo.key": spec.key}),
        resume=any((folder / "checkpoints").glob("step-*")),
        data=data,
        on_step=_Progress(folder),
        should_stop=should_stop,
    )
    if result.status == "stopped":
        return None
    if result.status == "diverged":
        return Outcome(Status.DIVERGED, curve=_curve(result), error=f"at step {result.step + 1}")
    return finished(seeded, data, result, folder, spec.probes)


def _check_same(recipe: Recipe, spec: RunSpec, data_fingerprint: str) -> None:
    """Refuse to compute under a key that is another run's: a source file or the data changed after the ablation was planned."""
    from hymo.ablate.key import ingredients
    from hymo.train.parallel import find_device

    now = ingredients(recipe, spec.init_seed, data_fingerprint, str(find_device(recipe.train.device)), spec.threads, spec.probes)
    changed = [name for name in {**spec.ingredients, **now} if spec.ingredients.get(name) != now.get(name)]
    if changed:
        raise AblationError(f"a run must be computed with what it was planned with, but got another {', '.join(changed)}; start the command again")


def finished(recipe: Recipe, data: Data, result: TrainResult, folder: Path, probes: Mapping[str, dict[str, Any]]) -> Outcome:
    """What a trained run came to: held-out loss, by position too, its probes, and the training's own last metrics."""
    from hymo.errors import DataError, ProbeError
    from hymo.probes.base import Subject, open_probe
    from hymo.train.parallel import find_device
    from hymo.trained import open_trained

    trained = open_trained(folder, find_device(recipe.train.device), allow_code=True)
    subject = Subject(trained.model, recipe, data)
    _, loss, bpb = result.validation[-1]
    metrics = {"val/loss": loss, **({"val/bpb": bpb} if bpb is not None else {}), **training_metrics(folder, result.step)}
    probed: list[str] = []
    left_out: dict[str, str] = {}
    for name, options in probes.items():
        try:
            finding = open_probe(name, options).measure(subject)
        except (ProbeError, DataError) as error:
            left_out[name] = str(error)
            continue
        metrics |= finding.metrics
        probed += [f"probe/{name}/{what}" for what in finding.summary]
    return Outcome(
        Status.FINISHED,
        metrics=metrics,
        curve=_curve(result),
        validation=[(step, value) for step, value, _ in result.validation],
        by_position=sorted(subject.held_out.loss_by_position.items()),
        probed=probed,
        left_out=left_out,
    )


def training_metrics(folder: Path, steps: int) -> dict[str, float]:
    """Mean of each training metric over the last steps, from the journal: a resumed run has every step in it once."""
    from hymo.journal import read

    first = steps - max(1, round(LAST_FRAC * steps)) + 1
    found: dict[str, list[float]] = {}
    for event, _ in read(folder / "journal.jsonl"):
        if event["event"] == "metrics" and event["step"] >= first:
            for name, value in event["values"].items():
                if not name.startswith(("val/", *MEASURED)):
                    found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


class _Progress:
    """Tells the command how far the run is, about once a second, in a file."""

    def __init__(self, folder: Path) -> None:
        self.path, self.next = folder / "progress.json", 0.0

    def __call__(self, info: StepInfo) -> None:
        now = time.monotonic()
        if now >= self.next or info.step == info.steps:
            self.next = now + 1.0
            partial = self.path.with_suffix(".part")
            partial.write_text(json.dumps({"step": info.step, "steps": info.steps, "loss": info.loss}))
            partial.replace(self.path)


def _curve(result: TrainResult) -> list[tuple[int, float]]:
    """The training loss at no more than CURVE_POINTS steps, the last among them."""
    every = max(1, -(-len(result.losses) // CURVE_POINTS))
    return [(step, loss) for step, loss in enumerate(result.losses, start=1) if step % every == 0 or step == len(result.losses)]


def _first_line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
