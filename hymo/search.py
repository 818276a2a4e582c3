"""`hymo search`: Optuna over any field of a recipe, and the only file that imports it. What a study file says is in hymo/study.py.

Any number of processes, on any hosts that share the storage and the folder, work on one study at once. A trial is held by a lock on a file, which
dies with its process: whoever comes next repeats it with the same values, and it counts once. A trial that diverges, or whose values make no
recipe, is recorded as failed and stops nothing.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from hymo.errors import AblationError, HymoError
from hymo.recipe import Recipe, dump, to_dict, with_overrides
from hymo.study import OWN_STORAGE, Dimension, Study

if TYPE_CHECKING:
    from hymo.train import StepInfo

KILLED, WHY = "killed", "why"  # user attributes of a failed trial: it is repeated, or it counts and says why


def search(study: Study, say: Callable[[str], None], should_stop: Callable[[], bool] = lambda: False) -> optuna.Study:
    """Work on the study until it has its trials. Returns when all of them are done, those of other processes included."""
    from hymo.tracking import MlflowTracker

    opened = open_study(study)
    run = study.recipe.run
    with _held(study.folder / "parent.lock") as first:
        parent = (
            MlflowTracker(None, study.folder, name=study.name, experiment=run.experiment, tracking=run.tracking, tags={"hymo.kind": "search"})
            if first
            else None
        )
        if parent is not None:
            parent.start()
        status = "stopped"
        try:
            while not should_stop():
                with FileLock(study.folder / "study.lock"):
                    repeat_killed(opened, study)
                    held = ask(opened, study)
                if held is None:
                    break
                say(work(opened, study, held, should_stop))
            status = "finished" if counted(opened) >= study.config.trials else "stopped"
        finally:
            if parent is not None:
                parent.finish(status)
    return opened


def open_study(study: Study) -> optuna.Study:
    """The study in its storage, made if it is new. Raises AblationError when the one there searches something else."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    elsewhere = _database(study.config.storage) if study.config.storage not in OWN_STORAGE else None  # before a folder is made: it may not be there
    study.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(study.folder / "study.lock"):  # first starts side by side would race through the schema
        opened = optuna.create_study(
            study_name=study.name,
            storage=elsewhere or _storage(study),
            directions=list(study.config.objectives.values()),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
            load_if_exists=True,
        )
        known = opened.user_attrs.get("identity")
        if known is None:
            opened.set_user_attr("identity", study.identity)
            (study.folder / "recipe.yaml").write_text(dump(study.recipe))
        elif known != study.identity:
            raise AblationError(
                f"a study must go on with the space and recipe it began with, but got others for {study.name!r}; rename the file for a new study"
            )
    return opened


def _storage(study: Study) -> Any:
    if study.config.storage == "journal":
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        return JournalStorage(JournalFileBackend(str(study.folder / "study.journal")))
    return _database(f"sqlite:///{study.folder / 'study.db'}")


def _database(address: str) -> optuna.storages.RDBStorage:
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return optuna.storages.RDBStorage(address, engine_kwargs={"connect_args": {"timeout": 60}} if address.startswith("sqlite") else None)
    except (SQLAlchemyError, StorageInternalError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise AblationError(f"storage must be sqlite, journal or a database that SQLAlchemy can open, but got {address!r} ({reason})") from None


def _sampler(study: Study, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of one trial, seeded by the trial's number, so that processes do not draw the same values and one alone always draws its own."""
    seed = study.config.seed * 1_000_003 + number
    samplers = optuna.samplers
    match study.config.sampler:
        case "tpe":
            return samplers.TPESampler(seed=seed)
        case "gp":
            return samplers.GPSampler(seed=seed)
        case "cmaes":
            return samplers.CmaEsSampler(seed=seed)
        case _:
            return samplers.RandomSampler(seed=seed)


def distribution(dimension: Dimension) -> BaseDistribution:
    """Optuna's word for a dimension. Whole numbers at both ends make whole numbers."""
    one = dimension
    if one.choices is not None:
        return CategoricalDistribution(one.choices)
    assert one.low is not None
    assert one.high is not None
    if isinstance(one.low, int) and isinstance(one.high, int):
        return IntDistribution(one.low, one.high, log=one.log, step=int(one.step or 1))
    return FloatDistribution(one.low, one.high, log=one.log, step=one.step)


def counted(opened: optuna.Study) -> int:
    """Trials that count: ended, and not killed."""
    return sum(trial.state.is_finished() and KILLED not in trial.user_attrs for trial in opened.get_trials(deepcopy=False))


def repeat_killed(opened: optuna.Study, study: Study) -> None:
    """Trials that say they run, and whose lock nobody holds, were killed: mark them so, and queue their values again."""
    for trial in opened.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        with _held(trial_folder(study, trial.number) / "claim") as free:
            if free:
                optuna.trial.Trial(opened, trial._trial_id).set_user_attr(KILLED, True)
                opened.tell(trial.number, state=TrialState.FAIL)
                opened.enqueue_trial(trial.params, user_attrs={"repeats": trial.number})


@dataclass(frozen=True)
class Held:
    """A trial and the lock that says it is being computed."""

    trial: optuna.Trial
    claim: FileLock


def ask(opened: optuna.Study, study: Study) -> Held | None:
    """Begin the next trial; None when there are enough, those that run included. Call with the study's lock held."""
    running = len(opened.get_trials(deepcopy=False, states=[TrialState.RUNNING]))
    if counted(opened) + running >= study.config.trials:
        return None
    opened.sampler = _sampler(study, len(opened.get_trials(deepcopy=False)))
    trial = opened.ask({field: distribution(dimension) for field, dimension in study.config.space.items()})
    folder = trial_folder(study, trial.number)
    folder.mkdir(parents=True, exist_ok=True)
    claim = FileLock(folder / "claim", timeout=0)
    claim.acquire()
    return Held(trial, claim)


def work(opened: optuna.Study, study: Study, held: Held, should_stop: Callable[[], bool]) -> str:
    """Compute one trial and put it on record; one line about it."""
    trial, number = held.trial, held.trial.number
    shown = ", ".join(
        f"{field.rpartition('.')[2]}={value:.4g}" if isinstance(value, float) else f"{field.rpartition('.')[2]}={value}"
        for field, value in trial.params.items()
    )
    try:
        metrics: dict[str, float] = {}
        for rung, share in enumerate(study.config.rungs):
            metrics = train_trial(study, trial.number, trial.params, share, should_stop)
            if len(study.config.objectives) == 1:
                trial.report(_values(study, metrics)[0], rung)
            if share < 1 and trial.should_prune():
                opened.tell(trial, state=TrialState.PRUNED)
                return f"trial {number}: pruned at {share:.0%} of the budget ({shown})"
        for name, value in metrics.items():
            trial.set_user_attr(name, value)
        values = _values(study, metrics)
        opened.tell(trial, values)
        return f"trial {number}: {', '.join(f'{name} {value:.5g}' for name, value in zip(study.config.objectives, values, strict=True))} ({shown})"
    except _Stopped:
        trial.set_user_attr(KILLED, True)
        opened.tell(trial, state=TrialState.FAIL)
        opened.enqueue_trial(trial.params, user_attrs={"repeats": number})
        return f"trial {number}: stopped; it will be repeated"
    except (HymoError, _Diverged) as error:
        trial.set_user_attr(WHY, str(error)[:300])
        opened.tell(trial, state=TrialState.FAIL)
        return f"trial {number}: failed, and counts: {error} ({shown})"
    finally:
        held.claim.release()


class _Stopped(Exception):
    """The user wants to stop."""


class _Diverged(Exception):
    """The trial has no finite result."""


def trial_recipe(study: Study, params: dict[str, Any]) -> Recipe:
    """The study's recipe with a trial's values laid over it."""
    return with_overrides(to_dict(study.recipe), [f"{field}={json.dumps(value)}" for field, value in params.items()])


def train_trial(study: Study, number: int, params: dict[str, Any], share: float, should_stop: Callable[[], bool]) -> dict[str, float]:
    """Train a trial's recipe on `share` of its budget, as a complete schedule, and return its metrics."""
    import torch

    from hymo.cost import count
    from hymo.tracking import MlflowTracker
    from hymo.train import train
    from hymo.train.schedule import total_steps

    recipe = trial_recipe(study, params)
    if share < 1:
        recipe = with_overrides(to_dict(recipe), [f"train.steps={max(1, round(share * total_steps(recipe.train)))}"])
    seconds: list[float] = []
    folder = trial_folder(study, number) / f"{share:g}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(dump(recipe))

    def on_step(info: StepInfo) -> None:
        seconds.append(info.seconds)

    name = f"{study.name} trial {number}" + ("" if share == 1 else f" ({share:.0%})")
    tracker = MlflowTracker(recipe, folder, parent=study.folder, name=name, tags={"hymo.kind": "trial"})
    try:
        result = train(recipe, run_dir=folder, tracker=tracker, on_step=on_step, should_stop=should_stop)
    except torch.OutOfMemoryError as error:
        raise _Diverged(f"out of memory: {' '.join(str(error).split())[:200]}") from None
    if result.status == "stopped":
        raise _Stopped
    if result.status == "diverged":
        raise _Diverged(result.message)
    _, loss, bpb = result.validation[-1]
    cost = count(recipe)
    return {
        "val/loss": loss,
        **({"val/bpb": bpb} if bpb is not None else {}),
        "speed/tokens_per_s": recipe.train.tokens_per_step / statistics.median(seconds),
        "cost/active": float(cost.active),
        "cost/flops_per_token_train": cost.flops_per_token_train,
        "cost/decode_bytes": float(cost.kv_bytes + cost.state_bytes),
    }


def _values(study: Study, metrics: dict[str, float]) -> list[float]:
    unknown = [name for name in study.config.objectives if name not in metrics]
    if unknown:
        raise AblationError(f"an objective must be one of {', '.join(metrics)}, but got {unknown[0]!r}")
    return [metrics[name] for name in study.config.objectives]


def best_trial(opened: optuna.Study, number: int | None) -> FrozenTrial:
    """The best trial, or on a front the one that was asked for. Raises AblationError when there is none, or when several are best."""
    front = opened.best_trials if opened.get_trials(deepcopy=False, states=[TrialState.COMPLETE]) else []
    if not front:
        raise AblationError("a study must have a finished trial to have a best one, but got none; `hymo search` goes on with it")
    if number is not None:
        chosen = [trial for trial in opened.get_trials(states=[TrialState.COMPLETE]) if trial.number == number]
        if not chosen:
            raise AblationError(f"--trial must be a finished one, but got {number}; the best are {', '.join(str(trial.number) for trial in front)}")
        return chosen[0]
    if len(front) > 1 and len(opened.directions) > 1:
        listed = "; ".join(f"{trial.number}: {', '.join(f'{value:.5g}' for value in trial.values)}" for trial in front)
        raise AblationError(f"several objectives have a front of best trials, but got no --trial to choose one of them: {listed}")
    return front[0]


def trial_folder(study: Study, number: int) -> Path:
    """Where a trial's runs are."""
    return study.folder / "trials" / f"{number:05d}"


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """True inside when the lock was free, and is now ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
