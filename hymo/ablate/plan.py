"""From experiments to a plan: every arm resolved, its differences shown, its match held, its price known, before anything runs.

The arms of one command are one family: one baseline, one correction for looking at all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from hymo.ablate.definition import AGAIN, BASELINE, Experiment, change
from hymo.ablate.difference import Change, differences
from hymo.ablate.matching import matched
from hymo.cost import Cost, count
from hymo.errors import AblationError, DataError, ProbeError, RecipeError, did_you_mean
from hymo.probes.base import open_probe
from hymo.recipe import Recipe, fingerprint, load_recipe, recipe_from_dict, to_dict, with_overrides

# What every arm is asked when it can be: loss beyond the trained length, and recall. Fewer rows than alone: they are paired, and there are many runs.
PROBES: dict[str, dict[str, Any]] = {"length": {}, "needle": {"rows": 8}, "mqar": {"examples": 16}, "task": {}}
MICRO_TOKENS = 16_384  # tokens a device takes at once
SALT = 1_000_003  # between a seed and its A/A seed: further apart than any ablation has seeds


@dataclass(frozen=True)
class Arm:
    """One way to build the model: a recipe (its seed is set run by run), and how it came about."""

    label: str
    recipe: Recipe
    cost: Cost
    experiment: Experiment | None = None  # None: the baseline and its A/A arm
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()  # what was solved, and what else moved
    salt: int = 0  # added to the seed of the initial weights, never to that of the data
    factors: tuple[str, ...] = ()  # labels of the two arms that this one combines (--cross)
    lr_unresolved: bool = False  # the best learning rate tried lies at the edge (--tune lr)


@dataclass(frozen=True)
class Plan:
    """What one `hymo ablate` does. `left_out` says which arms are none at this scale."""

    experiments: tuple[Experiment, ...]
    scale: str
    seeds: tuple[int, ...]
    baseline: Arm
    arms: tuple[Arm, ...]
    again: Arm | None = None
    left_out: tuple[str, ...] = ()
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)  # asked of every arm: settings by name
    looks: tuple[int, ...] = ()  # numbers of seeds after which to judge (`--until decided`); empty: once, at the end

    @property
    def everything(self) -> tuple[Arm, ...]:
        """Baseline, A/A arm, arms: in the order they run within a seed."""
        return (self.baseline, *([self.again] if self.again else []), *self.arms)

    @property
    def name(self) -> str:
        return "+".join(experiment.name for experiment in self.experiments)


def make_plan(
    experiments: Sequence[Experiment],
    *,
    scale: str,
    seeds: int,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    again: bool = False,
    cross: bool = False,
    looks: Sequence[int] = (),
    threads: int = 1,
) -> Plan:
    """Resolve every arm of `experiments` at `scale`. `only` names the arms to keep, `overrides` change the base for all of them.

    Threads and micro-batch are fixed here: what a machine would choose for them depends on what else it is doing, and sums round differently.

    Raises AblationError or RecipeError, one line with a place, for anything that would make the comparison unfair or impossible.
    """
    if seeds < 2:
        raise AblationError(
            f"an ablation must have 2 seeds at least, but got seeds={seeds}; one seed never names a winner, and 3 see only large effects"
        )
    base = base_recipe(experiments, scale, overrides, threads)
    baseline = Arm(BASELINE, base, count(base))
    several = len(experiments) > 1
    arms: list[Arm] = []
    left_out: list[str] = []
    known = {fingerprint(base): BASELINE}
    for experiment in experiments:
        for name in experiment.definition.arms:
            label = f"{experiment.name}/{name}" if several else name
            arm = _arm(experiment, name, label, baseline)
            same = known.setdefault(fingerprint(arm.recipe), label)
            if same != label:
                left_out.append(f"{label} is the same as {same} at scale {scale}")
            else:
                arms.append(arm)
    arms = _only(arms, only, left_out)
    if cross:
        arms += _crossed(experiments, arms, baseline)
    if not arms:
        raise AblationError(f"an ablation must have an arm that differs from the baseline, but got none at scale {scale}: {'; '.join(left_out)}")
    first = base.run.seed
    twin = Arm(AGAIN, base, baseline.cost, salt=SALT) if again else None
    return Plan(
        tuple(experiments),
        scale,
        tuple(range(first, first + seeds)),
        baseline,
        tuple(arms),
        twin,
        tuple(left_out),
        _probes(experiments, [baseline, *arms]),
        tuple(looks),
    )


def _probes(experiments: Sequence[Experiment], arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """The probes that the experiments name, and of those that come with every ablation the ones that all arms can be asked."""
    found: dict[str, dict[str, Any]] = {}
    for experiment in experiments:
        for name in experiment.definition.probes:
            for arm in arms:
                try:
                    open_probe(name).check(arm.recipe)
                except ProbeError as error:
                    raise experiment.error(f"arm {arm.label!r} must be able to be probed, but {error}", "probes") from None
            found[name] = {}
    for name, options in PROBES.items():
        with suppress(ProbeError, DataError):
            for arm in arms:
                open_probe(name, options).check(arm.recipe)
            found.setdefault(name, options)
    return found


def base_recipe(experiments: Sequence[Experiment], scale: str | None, overrides: Sequence[str], threads: int = 1) -> Recipe:
    """The one recipe that all the experiments start from, at `scale` (None: as written)."""
    bases: dict[str, Recipe] = {}
    for experiment in experiments:
        definition = experiment.definition
        try:
            recipe = load_recipe(experiment.base, scale=scale)
            recipe = with_overrides(change(to_dict(recipe), definition.set), overrides)
        except RecipeError as error:
            raise experiment.error(f"the base of {experiment.name!r}: {error}", "set" if definition.set else "base") from None
        bases.setdefault(fingerprint(recipe), recipe)
    if len(bases) > 1:
        names = ", ".join(experiment.name for experiment in experiments)
        raise AblationError(
            f"experiments ablated together must share their base recipe, but got {names} with {len(bases)} bases; ablate them one by one"
        )
    return _fixed(next(iter(bases.values())), threads)


def _fixed(base: Recipe, threads: int) -> Recipe:
    """The base with nothing left to the moment: threads, micro-batch, and one checkpoint kept."""
    train = base.train
    rows = train.tokens_per_step // train.seq_len
    fitting = max(size for size in range(1, rows + 1) if rows % size == 0 and (size == 1 or size * train.seq_len <= MICRO_TOKENS))
    micro = fitting if train.micro_batch == "auto" else train.micro_batch
    run = base.run.model_copy(update={"keep_last": 1, "keep_every": None})
    return base.model_copy(update={"train": train.model_copy(update={"threads": threads, "micro_batch": micro}), "run": run})


def _arm(experiment: Experiment, name: str, label: str, baseline: Arm) -> Arm:
    return _resolve(experiment, [name], label, baseline, experiment.definition.arms[name])


def _resolve(experiment: Experiment, names: list[str], label: str, baseline: Arm, *deltas: dict[str, Any]) -> Arm:
    raw = to_dict(baseline.recipe)
    try:
        for delta in deltas:
            raw = change(raw, delta)
        recipe = recipe_from_dict(raw)
    except RecipeError as error:
        raise experiment.error(f"arm {label!r} does not apply: {error}", "arms", names[0]) from None
    if recipe.run != baseline.recipe.run:
        raise experiment.error(
            f"arm {label!r} must leave `run` alone, but got a change of it; seeds and folders belong to the plan", "arms", names[0]
        )
    recipe, solved = matched(experiment, names[0], recipe, baseline.cost)
    changes = tuple(differences(baseline.recipe, recipe))
    _refuse_another_kernel(experiment, names[0], label, changes)
    solves = [field.removeprefix("model.layers.") for field in experiment.definition.match.solve]
    stray = [one.setting for one in changes if not one.matches([*experiment.definition.factor, *solves])]
    notes = [f"solved {one}" for one in solved]
    if stray:
        notes.append(
            f"also moves {', '.join(stray)}, which {'is' if len(stray) == 1 else 'are'} not its factor ({', '.join(experiment.definition.factor)})"
        )
    return Arm(label, recipe, count(recipe), experiment, changes, tuple(notes))


def _refuse_another_kernel(experiment: Experiment, name: str, label: str, changes: Sequence[Change]) -> None:
    """Two kernels of one operation round differently, and that is not what the arm is about."""
    for one in changes:
        if one.setting.endswith(".impl") and not one.matches(experiment.definition.factor):
            raise experiment.error(
                f"arms must resolve to the same kernels, but got {one} in {label!r}; set it for all of them with KEY=VALUE", "arms", name
            )


def _only(arms: list[Arm], only: Sequence[str], left_out: list[str]) -> list[Arm]:
    """The arms that were asked for, by label or by name."""
    if not only:
        return arms
    by_name = {name: arm for arm in arms for name in (arm.label.rpartition("/")[2], arm.label)}
    for name in only:
        if name not in by_name:
            gone = next((f"; {why}" for why in left_out if why.startswith(f"{name} ") or f"/{name} " in why), None)
            raise AblationError(f"an arm must be one of the experiments', but got {name!r}{gone or did_you_mean(name, by_name)}")
    wanted = {by_name[name].label for name in only}
    return [arm for arm in arms if arm.label in wanted]


def _crossed(experiments: Sequence[Experiment], arms: list[Arm], baseline: Arm) -> list[Arm]:
    """The cells of the factorial that hold two changes at once, one from either experiment."""
    if len(experiments) != 2:
        raise AblationError(f"--cross must have two experiments, one factor each, but got {len(experiments)}; their arms are combined pair by pair")
    first, second = ([arm for arm in arms if arm.experiment is experiment] for experiment in experiments)
    one, two = (experiment.definition for experiment in experiments)
    if (one.primary, one.match) != (two.primary, two.match):
        raise AblationError("experiments that are crossed must share `primary` and `match`, but got two of them; make them equal in both files")
    combined = []
    for left, right in product(first, second):
        names = [arm.label.rpartition("/")[2] for arm in (left, right)]
        label = f"{names[0]} × {names[1]}"
        cell = _resolve(experiments[0], [names[0]], label, baseline, one.arms[names[0]], two.arms[names[1]])
        wanted = [*one.factor, *two.factor, *(field.removeprefix("model.layers.") for field in one.match.solve)]
        stray = [each.setting for each in cell.changes if not each.matches(wanted)]
        notes = [note for note in cell.notes if not note.startswith("also moves")] + ([f"also moves {', '.join(stray)}"] if stray else [])
        combined.append(replace(cell, notes=tuple(notes), factors=(left.label, right.label)))
    return combined
