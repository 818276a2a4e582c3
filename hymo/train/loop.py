"""train(): a recipe in, a trained model in a run folder out."""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hymo.data import Data, open_data
from hymo.data.tokenizer import JsonTokenizer
from hymo.data.train_tokenizer import save_tokenizer
from hymo.errors import CheckpointError
from hymo.evaluate import evaluate
from hymo.recipe import Recipe
from hymo.train import checkpoint, moment
from hymo.train.checkpoint import Checkpoint
from hymo.train.device import peak_bytes
from hymo.train.micro_batch import within_memory
from hymo.train.parallel import World, joined
from hymo.train.progress import Progress, check_same, state_of
from hymo.train.schedule import interval, total_steps
from hymo.train.session import Session
from hymo.train.step import Pending
from hymo.train.tracker import NullTracker, RunStart, Tracker

PATIENCE = 10       # bad steps in a row that `skip` bears, and rollbacks to one checkpoint that `rollback` bears, before the run has diverged
Status = Literal["finished", "stopped", "diverged"]
Verdict = Literal["go", "stop", "diverged", "rolled back"]
log = logging.getLogger("hymo")


@dataclass(frozen=True)
class StepInfo:
    """One optimizer step that is done. `metrics` is what was, or would have been, logged."""

    step: int           # steps done, this one included
    steps: int          # steps of the whole run
    loss: float         # main head, nats per label
    tokens: int         # tokens seen so far
    seconds: float      # since the step before
    metrics: dict[str, float]


@dataclass(frozen=True)
class TrainResult:
    """How a run ended. `losses[i]` is the main loss of step i+1; `validation` holds (step, loss, bits per byte)."""

    status: Status
    step: int
    losses: list[float]
    validation: list[tuple[int, float, float | None]]
    run_dir: Path
    bad_steps: list[int] = field(default_factory=list)      # steps whose loss or gradient was not finite, or whose loss was a spike
    message: str = ""                                       # why it stopped, when it did not finish


def train(recipe: Recipe, *, run_dir: Path, tracker: Tracker | None = None, resume: bool = False, data: Data | None = None,
          on_step: Callable[[StepInfo], None] | None = None, should_stop: Callable[[], bool] | None = None) -> TrainResult:
    """Train `recipe` in `run_dir`; with `resume`, go on from the newest whole checkpoint there, bit for bit (on a CPU) as if never interrupted.

    Runs alone, or as one of the processes of torchrun or a SLURM step. `on_step` is called after every step, `should_stop` before; when it says
    True, or at SIGTERM, the run saves a checkpoint and returns "stopped". Only rank 0 tracks and calls back.
    Raises a HymoError for everything that the user has to mend: memory, data, disk, a checkpoint of another recipe.
    """
    with joined(recipe.train.device) as world, stop_signal(should_stop) as stop:
        run = Run(recipe, run_dir, world, tracker if tracker and world.first else NullTracker(), data, on_step if world.first else None)
        status = "failed"
        try:
            result = run.go(resume, stop)
            status = result.status
            return result
        finally:
            run.close(status)


class Run:
    """One call of train()."""

    def __init__(self, recipe: Recipe, run_dir: Path, world: World, tracker: Tracker, data: Data | None,
                 on_step: Callable[[StepInfo], None] | None) -> None:
        self.recipe, self.run_dir, self.world, self.tracker, self.on_step = recipe, run_dir, world, tracker, on_step
        self.data = data or open_data(recipe, world.rank, world.size)
        self.steps = total_steps(recipe.train)
        self.validate_every, self.save_every = interval(recipe.eval.every, self.steps), interval(recipe.run.checkpoint_every, self.steps)
        self.checkpoints = run_dir / "checkpoints"
        with within_memory("the model and its optimizer", recipe, 1, world):
            self.session = Session(recipe, self.data, world)
        self.progress = Progress()
        self.position = {"loader": self.session.feed.loader.state_dict(), "batches": 0}     # of the feed, after the last step that was launched
        self.inflight: deque[tuple[int, int, Pending]] = deque()                            # (step, number of its batch, its numbers)
        self.logged = self.validated = 0    # the last step on record: after a rollback steps repeat, and their records do not
        self.started, self.message = False, ""
        self.before = moment.now(world.device)      # the end of the step before

    # -- from the first step to the last ------------------------------------------------------------------------------------------
    def go(self, resume: bool, stop: Callable[[], bool]) -> TrainResult:
        """Train to the end, or to whatever comes before it."""
        if self.world.first:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            checkpoint.discard_partial(self.checkpoints)
            if isinstance(self.data.tokenizer, JsonTokenizer):      # whoever uses the run later needs no data
                save_tokenizer(self.data.tokenizer, self.run_dir / "tokenizer.json")
        if not resume and checkpoint.paths(self.checkpoints):
            raise CheckpointError(f"a new run needs a folder of its own, but {self.run_dir} holds checkpoints; resume it, or name another folder")
        found = self.newest() if resume else None
        if found:
            check_same(found.state, self.recipe, self.data)
            self.restore(found)
        elif self.recipe.train.on_bad_loss == "rollback":
            self.save()
        self.tracker.start(RunStart(self.progress.step, self.steps, self.session.facts, dict(self.data.summary)))
        self.started = True
        status = self.loop(stop)
        done = self.progress
        return TrainResult(status, done.step, done.losses, done.validation, self.run_dir, done.bad_steps, self.message)

    def loop(self, stop: Callable[[], bool]) -> Status:
        """Launch steps. On a GPU the numbers of a step are read while the next one runs: the host is one step ahead and never waits for this one."""
        lag = 1 if self.world.device.type == "cuda" else 0
        launched = self.progress.step
        self.before = moment.now(self.world.device)
        while launched < self.steps:
            if self.world.size == 1 and stop():
                return self.stopped()
            fed = self.session.feed.next()
            with within_memory("a step", self.recipe, self.session.stepper.micro_batch, self.world):
                pending = self.session.stepper(fed, launched, stop())
            launched, self.position = launched + 1, fed.state
            self.inflight.append((launched, fed.index, pending))
            last = launched == self.steps
            validating, saving = last or launched % self.validate_every == 0, last or launched % self.save_every == 0
            verdict = self.settle(0 if validating or saving else lag)
            if verdict == "diverged":
                return "diverged"
            if verdict == "rolled back":
                launched = self.progress.step
                continue
            if validating:
                self.validate()
            if verdict == "stop" and not last:
                return self.stopped()
            if saving:
                self.save()
            if validating or saving:
                self.before = moment.now(self.world.device)
        return "finished"

    def stopped(self) -> Status:
        """Save and leave."""
        if self.settle(0) == "diverged":
            return "diverged"
        self.save()
        self.message = f"stopped after step {self.progress.step} of {self.steps}; its checkpoint is saved"
        return "stopped"

    # -- what a step came to ------------------------------------------------------------------------------------------------------
    def settle(self, keep: int) -> Verdict:
        """Take account of the steps in flight, all but the `keep` newest."""
        verdict: Verdict = "go"
        while len(self.inflight) > keep:
            found = self.account(*self.inflight.popleft())
            if found in ("diverged", "rolled back"):
                self.inflight.clear()
                return found
            verdict = "stop" if found == "stop" else verdict
        return verdict

    def account(self, step: int, batch: int, pending: Pending) -> Verdict:
        """Record one step: history, log, callback, and the policy for one that is not finite."""
        values = pending.read()
        bad, spike, stop = values.pop("bad") > 0, values.pop("spike", 0) > 0, values.pop("stop") > 0
        seconds, self.before = moment.seconds(self.before, pending.done), pending.done
        progress = self.progress
        if bad:
            progress.bad_steps.append(step)
            verdict = self.bad_step(step, batch, values["loss/main"] if spike else None)
            if verdict != "go":
                return verdict
        progress.step = step
        progress.losses.append(values["loss/main"])
        tokens = step * self.recipe.train.tokens_per_step
        values["speed/tokens_per_s"] = self.recipe.train.tokens_per_step / seconds
        if (mfu := self.session.mfu(values["speed/tokens_per_s"])) is not None:
            values["speed/mfu"] = mfu
        values["memory/bytes_peak"] = peak_bytes(self.world.device)
        values["progress/tokens"] = tokens
        counts = {"progress/bad_steps": len(progress.bad_steps), "progress/rollbacks": len(progress.rollbacks)}
        values.update({name: count for name, count in counts.items() if count})
        if step > self.logged and (step % self.recipe.run.log_every == 0 or step in (1, self.steps) or bad):
            self.tracker.metrics(step, values)
        self.logged = max(self.logged, step)
        if self.on_step:
            self.on_step(StepInfo(step, self.steps, values["loss/main"], tokens, seconds, values))
        return "stop" if stop else "go"

    def bad_step(self, step: int, batch: int, spike: float | None) -> Verdict:
        """What `train.on_bad_loss` says about a step whose loss or gradient is not finite, or whose loss is a `spike`. It moved no weight."""
        train, progress = self.recipe.train, self.progress
        policy, what = train.on_bad_loss, f"the loss or the gradient of step {step} is not finite"
        if spike is not None:
            what = f"the loss of step {step}, {spike:.4g}, is a spike of more than train.spike_sigma={train.spike_sigma:g} standard deviations"
        self.message = f"{what} (train.on_bad_loss={policy})"
        if policy == "skip" and not all(step - i in progress.bad_steps for i in range(PATIENCE)):
            log.warning("%s; the batch is skipped, %d so far", self.message, len(progress.bad_steps))
            return "go"
        if policy == "rollback":
            found = self.newest()
            assert found is not None, "a checkpoint is saved before the first step"
            if progress.rollbacks.count(found.step) < PATIENCE:
                bad_steps, skip, rollbacks = progress.bad_steps, [*progress.skip, batch], [*progress.rollbacks, found.step]
                log.warning("%s; going back to step %d, without that batch", self.message, found.step)
                self.restore(found)
                self.progress.bad_steps, self.progress.skip, self.progress.rollbacks = bad_steps, skip, rollbacks
                self.session.feed.rewind(self.position, skip)
                return "rolled back"
        self.message += "; lower the learning rates, or set train.on_bad_loss=skip or rollback" if policy == "stop" else f", {PATIENCE} times over"
        log.error("%s", self.message)
        return "diverged"

    # -- validation and checkpoints -----------------------------------------------------------------------------------------------
    def validate(self) -> None:
        """Held-out loss, and bits per byte."""
        rows = self.session.stepper.micro_batch
        with within_memory("a validation", self.recipe, rows, self.world):
            found = evaluate(self.session.model, self.data, self.recipe, world=self.world, rows=rows, measure=True)
        step = self.progress.step
        self.progress.validation.append((step, found.loss, found.bpb))
        if step <= self.validated:      # a rollback came by here again
            return
        self.validated = step
        values = {"val/loss": found.loss, **{f"val/loss_at_{position}": loss for position, loss in found.loss_by_position.items()}}
        self.tracker.metrics(step, values if found.bpb is None else {**values, "val/bpb": found.bpb})
        self.tracker.vectors(step, found.measures)

    def save(self) -> None:
        """Checkpoint the step that everything has been accounted for."""
        run = self.recipe.run
        state = state_of(self.progress, self.position, self.recipe, self.data, self.session.stepper.micro_batch)
        checkpoint.save(self.checkpoints, self.progress.step, self.session.groups(), state, self.world, run.keep_last, run.keep_every)

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint, the same on every rank."""
        found: Checkpoint | CheckpointError | None = None
        if self.world.first:
            try:
                found = checkpoint.latest(self.checkpoints)
            except CheckpointError as error:
                found = error
        found = self.world.share(found)
        if isinstance(found, CheckpointError):
            raise found
        return found

    def restore(self, found: Checkpoint) -> None:
        """Go back, or on, to a checkpoint."""
        self.session.load(found)
        self.progress, self.position = Progress.of(found.state), found.state["position"]
        self.session.feed.rewind(self.position, self.progress.skip)
        if self.session.stepper.spikes is not None:
            skipped = set(self.progress.bad_steps if self.recipe.train.on_bad_loss == "skip" else ())    # a rollback repeats the step, and it is good
            self.session.stepper.spikes.refill([loss for step, loss in enumerate(self.progress.losses, 1) if step not in skipped])

    def close(self, status: str) -> None:
        """End the feed's thread and the tracked run."""
        self.session.feed.close()
        if self.started:
            self.tracker.finish(status)


@contextmanager
def stop_signal(should_stop: Callable[[], bool] | None) -> Iterator[Callable[[], bool]]:
    """A question that is answered True once `should_stop` says so or SIGTERM has come (a scheduler's warning before it kills)."""
    asked = threading.Event()
    mine = threading.current_thread() is threading.main_thread()     # signals belong to the main thread
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set()) if mine else None
    try:
        yield lambda: asked.is_set() or (should_stop is not None and should_stop())
    finally:
        if mine:
            signal.signal(signal.SIGTERM, before)
