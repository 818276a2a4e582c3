"""An experiment as written down before it is run: experiments/<name>/ablation.yaml.

    hypothesis: Rotation adds nothing to the gated layers just before an MLA layer.
    base: v1_0                          # a recipe; the arms are changes to it, made after the scale is applied
    factor: [mixer.rope]                # what an arm may move; the plan calls out anything else that moves
    primary: val/loss                   # the ONE metric that decides: main validation loss, extra heads excluded
    delta_min: 0.005                    # smallest difference that matters, in the metric's units
    margin: 0.005                       # differences within ±margin count as equal
    match: {by: active_params, tolerance: 0.01, solve: model.layers.M.ffn.inter_dim}
    arms:
      before_mla: {model.overrides: {"before:M": {mixer: {rope: none}}}}
    expectation: Within the margin.

Deltas are nested or dotted. Three values are relative to the base, so that one delta holds at every scale:

    x0.5                the base's own number, halved
    x0.25 of head_dim   a quarter of the number beside it; of model.d_model: of the number there
    MGGGGGGG*           (in model.pattern) the group, repeated and cut to the base's depth
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from hymo.errors import AblationError, RecipeError, did_you_mean
from hymo.pattern import parse
from hymo.recipe.explain import explain, nearest
from hymo.recipe.merge import Keys, merge, nest
from hymo.recipe.reading import read_file
from hymo.settings import Settings

FILE = "ablation.yaml"
BASELINE, AGAIN = "baseline", "a/a"
_ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_RELATIVE = re.compile(r"x([0-9]+(?:\.[0-9]+)?)(?: of ([A-Za-z_.]+))?")
_FILL = re.compile(r"[A-Za-z]+\*")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_match(value: Any) -> Any:
    return {"by": value} if isinstance(value, str) else value


class Match(Settings):
    """What is held equal between an arm and the baseline, so that the comparison is fair."""

    by: Literal["active_params", "flops_per_token", "wall_time", "none"] = Field(description="quantity held equal; none: only the factor differs")
    tolerance: float = Field(default=0.01, gt=0, lt=1, description="largest relative difference that still counts as equal")
    solve: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        default=[], description="dotted whole-number fields, widths, that may change to bring an arm back: a coarse one first, finer ones after it"
    )

    @model_validator(mode="after")
    def _not_contradictory(self) -> Match:
        if self.by == "none" and (given := sorted(self.model_fields_set - {"by"})):
            raise ValueError(f"matching by none must come alone, but got {', '.join(given)} beside it; say what is matched")
        if self.by == "wall_time" and self.solve:
            raise ValueError(f"matching by wall_time changes the number of steps, but got solve={self.solve}; leave `solve` out")
        return self


class Definition(Settings):
    """The fields of an ablation.yaml."""

    WHAT = "an experiment"

    hypothesis: str = Field(min_length=1, description="one sentence that the result can contradict")
    base: str = Field(default="v1_0", description="recipe of the baseline: a shipped name, or a file beside this one")
    set: dict[str, Any] = Field(default={}, description="changes to the base itself, made for every arm alike")
    factor: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        min_length=1, description="settings that an arm may move (resolved names; `*` stands for any)"
    )
    primary: str = Field(default="val/loss", description="the one metric that decides")
    better: Literal["lower", "higher"] = Field(default="lower", description="which way the primary metric improves")
    secondary: list[str] = Field(default=[], description="further metrics, reported beside the primary with Holm's correction of their own")
    delta_min: float = Field(gt=0, description="smallest difference of the primary metric that matters")
    margin: float = Field(gt=0, description="differences within ±margin count as equal")
    match: Annotated[Match, BeforeValidator(_as_match)] = Field(description="what is held equal between the arms")
    probes: list[str] = Field(default=[], description="probes to run on every trained arm")
    arms: dict[str, dict[str, Any]] = Field(min_length=1, description="arm by arm, its changes to the base recipe")
    expectation: str = Field(min_length=1, description="what published work, or the hypothesis, leads one to expect")


@dataclass(frozen=True)
class Experiment:
    """A definition with the name it goes by and the place of everything in it."""

    name: str
    path: Path
    definition: Definition
    places: Mapping[Keys, str]

    @property
    def base(self) -> Path | str:
        """The base recipe: a file beside the experiment, or a shipped name."""
        beside = self.path.parent / self.definition.base
        return beside if beside.is_file() else self.definition.base

    def where(self, *keys: str) -> str:
        """ "file:line:column" of a setting, or of what holds it."""
        return nearest(self.places, keys) or str(self.path)

    def error(self, message: str, *keys: str) -> AblationError:
        """An AblationError that opens with the setting's place."""
        return AblationError(f"{self.where(*keys)}: {message}")


def folder() -> Path:
    """Where the shipped experiments are: inside an installed wheel, or beside hymo in a source checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_experiments"
    return installed if installed.is_dir() else package.parent / "experiments"


def shipped() -> list[str]:
    """Names of the experiments that come with hymo."""
    return sorted(path.parent.name for path in folder().glob(f"*/{FILE}"))


def find(name: str) -> Path:
    """The ablation.yaml that `name` means: a file, a folder, ./experiments/<name>, or a shipped one. Raises AblationError with a did-you-mean."""
    candidates = [Path(name), Path(name) / FILE, Path("experiments") / name / FILE, folder() / name / FILE]
    for path in candidates:
        if path.is_file():
            return path
    local = [path.parent.name for path in Path("experiments").glob(f"*/{FILE}")]
    raise AblationError(
        f"an experiment must be a shipped name or a folder with an {FILE}, but got {name!r}{did_you_mean(name, {*local, *shipped()})}"
    )


def load(name: str) -> Experiment:
    """Read and check one experiment. Every error is one line with file, line and column."""
    path = find(name)
    document = read_file(path)
    if not isinstance(document.value, dict):
        raise AblationError(f"{path}: an experiment must be a mapping with hypothesis, arms, delta_min, …, but got {type(document.value).__name__}")
    try:
        definition = Definition.model_validate(document.value)
    except ValidationError as error:
        raise AblationError(str(explain(error, Definition, document.value, document.places))) from None
    experiment = Experiment(path.parent.name if path.name == FILE else path.stem, path, definition, document.places)
    for arm in definition.arms:
        if not _ARM.fullmatch(arm) or arm == BASELINE:
            raise experiment.error(f"an arm's name must be a word of letters, digits and _.+- other than {BASELINE!r}, but got {arm!r}", "arms", arm)
        if not definition.arms[arm]:
            raise experiment.error(f"an arm must change something, but got an empty {arm!r}; `--aa` adds an arm equal to the baseline", "arms", arm)
    return experiment


def change(base: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """`delta` laid over the recipe dict `base` by the recipe's own merge rules. Raises RecipeError when it does not apply."""
    result: dict[str, Any] = dict(base)
    for key, value in delta.items():
        keys = tuple(key.split("."))
        result = merge(result, nest(keys, _absolute(value, base, keys)))
    return result


def at(tree: Any, keys: Keys) -> Any:
    """The value at `keys`, None where there is nothing."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _absolute(value: Any, base: Mapping[str, Any], keys: Keys) -> Any:
    """`value` with everything relative made the base's own."""
    if isinstance(value, Mapping):
        return {key: _absolute(inner, base, (*keys, str(key))) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    if keys == ("model", "pattern") and _FILL.fullmatch(value):
        depth = len(parse(base["model"]["pattern"]))
        return (value[:-1] * depth)[:depth]
    relative = _RELATIVE.fullmatch(value)
    if relative is None:
        return value
    of = relative[2] or keys[-1]
    return _multiple(value, float(relative[1]), base, tuple(of.split(".")) if "." in of else (*keys[:-1], of), keys)


def _multiple(value: str, factor: float, base: Mapping[str, Any], of: Keys, keys: Keys) -> int | float:
    name, number = ".".join(keys), at(base, of)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise RecipeError(f"{name}: {value!r} multiplies a number of the base, but got {number!r} at {'.'.join(of)}; write the value itself")
    product = number * factor
    if isinstance(number, float):
        return product
    if product != round(product):
        raise RecipeError(f"{name}: {value!r} must give a whole number, but got {product:g} from {number} at this scale; write the value itself")
    return round(product)
