"""`hymo search`: Optuna over any field of a recipe, and the only file that imports it.

    # search/knobs.yaml
    scale: proxy
    trials: 40
    sampler: tpe                                        # tpe, gp, cmaes or random
    objectives: {val/loss: minimize}                    # several make a Pareto front: {val/loss: minimize, speed/tokens_per_s: maximize}
    rungs: [0.25, 1]                                    # a trial may be pruned after a complete schedule of a quarter of the budget
    space:
      optimizer.normuon.lr: {low: 1e-3, high: 2e-2, log: true}
      model.layers.M.ffn.top_k: {choices: [1, 2, 4]}

Any number of processes, on any hosts that share the storage and the folder, work on one study at once. A trial is held by a lock on a file, which
dies with its process: whoever comes next repeats it with the same values, and it counts once. A trial that diverges, or whose values make no
recipe, is recorded as failed and stops nothing.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from pydantic import Field, ValidationError, field_validator, model_validator

from hymo.errors import AblationError, HymoError, RecipeError, did_you_mean
from hymo.recipe import Recipe, dump, to_dict, with_overrides
from hymo.recipe.explain import explain
from hymo.recipe.reading import read_file
from hymo.settings import Settings

if TYPE_CHECKING:
    from hymo.train import StepInfo

Scalar = bool | int | float | str
OWN_STORAGE = ("sqlite", "journal")  # in the study's folder
METRICS = ("val/loss", "val/bpb", "speed/tokens_per_s", "cost/active", "cost/flops_per_token_train", "cost/decode_bytes")  # of a trial
KILLED, WHY = "killed", "why"  # user attributes of a failed trial: it is repeated, or it counts and says why


class Dimension(Settings):
    """One field that is searched: a range, or a list of values."""

    low: int | float | None = Field(default=None, description="least value")
    high: int | float | None = Field(default=None, description="greatest value")
    log: bool = Field(default=False, description="drawn evenly in the logarithm")
    step: int | float | None = Field(default=None, gt=0, description="distance between values")
    choices: list[Scalar] | None = Field(default=None, min_length=2, description="values to choose from, instead of a range")

    @model_validator(mode="after")
    def _one_of_two(self) -> Dimension:
        ends = sum(end is not None for end in (self.low, self.high))
        if ends != (0 if self.choices else 2):
            raise ValueError("must have either low and high, or choices")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"low must be below high, but got low={self.low}, high={self.high}")
        if self.log and (self.step is not None or self.low is None or self.low <= 0):
            raise ValueError(f"a logarithmic range must begin above 0 and have no step, but got low={self.low}, step={self.step}")
        if self.step is not None and self.low is not None and self.high is not None:
            if isinstance(self.low, int) and isinstance(self.high, int) and not isinstance(self.step, int):
                raise ValueError(f"the step of whole numbers must be whole, but got step={self.step}")
            if self.step > self.high - self.low:
                raise ValueError(f"a step must fit between low and high, but got low={self.low}, high={self.high}, step={self.step}")
        return self

    @property
    def distribution(self) -> BaseDistribution:
        """Optuna's word for it. Whole numbers at both ends make whole numbers."""
        if self.choices is not None:
            return CategoricalDistribution(self.choices)
        assert self.low is not None
        assert self.high is not None
        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)


class StudyConfig(Settings):
    """The fields of a study's file."""

    WHAT = "a study"

    scale: str = Field(description="scale of the recipe that every trial trains at")
    trials: int = Field(gt=0, description="trials in all, over all processes and resumptions")
    space: dict[str, Dimension] = Field(min_length=1, description="dotted recipe fields and what they may be")
    objectives: dict[str, Literal["minimize", "maximize"]] = Field(
        default={"val/loss": "minimize"}, min_length=1, description="metrics of a finished run, and which way is better"
    )
    sampler: Literal["tpe", "gp", "cmaes", "random"] = Field(default="tpe", description="how the next values are chosen")
    rungs: list[float] = Field(
        default=[1.0], min_length=1, description="shares of the budget, each a complete schedule; a trial may be pruned between them"
    )
    seed: int = Field(default=0, ge=0, description="seed of the sampler")
    storage: str = Field(default="sqlite", description="sqlite · journal · an address that SQLAlchemy knows, for hosts without a shared folder")

    @field_validator("rungs")
    @classmethod
    def _rising_to_one(cls, rungs: list[float]) -> list[float]:
        if rungs != sorted(set(rungs)) or rungs[0] <= 0 or rungs[-1] != 1:
            raise ValueError(f"must rise to 1, but got {rungs}; for example [0.25, 1]")
        return rungs

    @field_validator("objectives")
    @classmethod
    def _known(cls, objectives: dict[str, str]) -> dict[str, str]:
        unknown = next((name for name in objectives if name not in METRICS), None)
        if unknown is not None:
            raise ValueError(f"must be among {', '.join(METRICS)}, but got {unknown!r}{did_you_mean(unknown, METRICS)}")
        return objectives

    @model_validator(mode="after")
    def _prunes_one_objective(self) -> StudyConfig:
        if len(self.rungs) > 1 and len(self.objectives) > 1:
            raise ValueError(f"pruning needs one objective, but got {', '.join(self.objectives)}; set rungs: [1]")
        if self.sampler == "cmaes" and (len(self.objectives) > 1 or any(one.choices for one in self.space.values())):
            raise ValueError("cmaes takes one objective and ranges only; use sampler: tpe")
        return self


@dataclass(frozen=True)
class Study:
    """A study file, the recipe it searches, and the folder that belongs to it."""

    name: str
    config: StudyConfig
    recipe: Recipe
    folder: Path

    @property
    def identity(self) -> str:
        """Digest of what must stay for trials to be comparable; the number of trials may change."""
        fixed = self.config.model_dump(mode="json", exclude={"trials"})
        recipe = {key: value for key, value in to_dict(self.recipe).items() if key not in ("name", "run")}
        return hashlib.sha256(json.dumps([fixed, recipe], sort_keys=True).encode()).hexdigest()[:16]


def load_study(path: Path, recipe_at: Callable[[str], Recipe], output: Path, trials: int | None = None) -> Study:
    """The study in a file, over the recipe that `recipe_at(scale)` gives. `trials` replaces the file's number."""
    document = read_file(path)
    raw = document.value if isinstance(document.value, dict) else {}
    if trials is not None:
        raw = {**raw, "trials": trials}
    try:
        config = StudyConfig.model_validate(raw)
    except ValidationError as error:
        raise AblationError(str(explain(error, StudyConfig, raw, document.places))) from None
    study = Study(path.stem, config, recipe_at(config.scale), output / path.stem)
    for field, dimension in config.space.items():
        try:
            with_overrides(to_dict(study.recipe), [f"{field}={json.dumps(value)}" for value in _corner(dimension)])
        except RecipeError as error:
            raise AblationError(f"{document.places.get(('space', field), path)}: {error}") from None
    return study


def _corner(dimension: Dimension) -> list[Scalar]:
    """One value that the dimension may take."""
    return dimension.choices[:1] if dimension.choices else [dimension.low if dimension.low is not None else 0]


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
    trial = opened.ask({field: dimension.distribution for field, dimension in study.config.space.items()})
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
