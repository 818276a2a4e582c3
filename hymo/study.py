"""What a search searches: the study file, its fields, and the recipe that they are laid over.

    # search/knobs.yaml
    scale: proxy
    trials: 40
    sampler: tpe                                        # tpe, gp, cmaes or random
    objectives: {val/loss: minimize}                    # several make a Pareto front: {val/loss: minimize, speed/tokens_per_s: maximize}
    rungs: [0.25, 1]                                    # a trial may be pruned after a complete schedule of a quarter of the budget
    space:
      optimizer.normuon.lr: {low: 1e-3, high: 2e-2, log: true}
      model.layers.M.ffn.top_k: {choices: [1, 2, 4]}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from hymo.errors import AblationError, RecipeError, did_you_mean
from hymo.recipe import Recipe, to_dict, with_overrides
from hymo.recipe.explain import explain
from hymo.recipe.reading import read_file
from hymo.settings import Settings

Scalar = bool | int | float | str
OWN_STORAGE = ("sqlite", "journal")  # in the study's folder
METRICS = ("val/loss", "val/bpb", "speed/tokens_per_s", "cost/active", "cost/flops_per_token_train", "cost/decode_bytes")  # of a trial


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
