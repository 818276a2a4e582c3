"""Changes to a plan that need runs to be known: the learning rate of each arm (`--tune lr`), and steps of equal time (match by wall_time)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hymo.ablate.definition import change
from hymo.ablate.difference import differences
from hymo.ablate.plan import Arm, Plan
from hymo.ablate.result import Outcomes, primary
from hymo.ablate.store import Status
from hymo.cost import count
from hymo.errors import AblationError
from hymo.recipe import Recipe, recipe_from_dict, to_dict
from hymo.train.schedule import total_steps

TUNING_SEED = 500_009  # after the verdict's: a rate chosen on a seed would look too good on it
LEARNING_RATES = (("normuon", "lr"), ("adamw", "lr"))


def check_factors(factors: Sequence[float]) -> tuple[float, ...]:
    """The factors to try, rising. Raises AblationError unless there are three at least, with the recipe's own rate among them."""
    found = tuple(sorted(set(factors)))
    if len(found) < 3 or found[0] <= 0 or 1.0 not in found:
        raise AblationError(
            f"--tune lr needs three factors of the learning rate at least, 1 among them, but got {list(factors)}; for example lr:0.5,1,2"
        )
    return found


def tries(plan: Plan, factors: Sequence[float]) -> Plan:
    """The plan of the tries: every arm at every factor, on a seed that no verdict sees."""
    arms = [_at_rate(arm, factor) for arm in (plan.baseline, *plan.arms) for factor in factors]
    return replace(plan, baseline=arms[0], arms=tuple(arms[1:]), again=None, seeds=(plan.seeds[0] + TUNING_SEED,), looks=())


def tuned(plan: Plan, factors: Sequence[float], outcomes: Outcomes) -> Plan:
    """Every arm at its own best rate. An arm whose best lies at the edge of the tries is unresolved, and so are all when the baseline's does."""
    chosen = {arm.label: _best(plan, arm, factors, outcomes) for arm in (plan.baseline, *plan.arms)}
    edge = {label: factor in (None, factors[0], factors[-1]) for label, factor in chosen.items()}
    tried = ", ".join(f"x{factor:g}" for factor in factors)

    def at_best(arm: Arm) -> Arm:
        factor = chosen[plan.baseline.label if arm.salt else arm.label]
        note = f"learning rates x{factor or 1:g}, the best of {tried}" if factor else f"no learning rate of {tried} gives a finite result"
        return replace(
            arm,
            recipe=_scaled(arm.recipe, factor or 1.0),
            notes=(*arm.notes, note),
            lr_unresolved=edge[plan.baseline.label] or edge.get(arm.label, False),
        )

    baseline = at_best(plan.baseline)
    return replace(plan, baseline=baseline, again=at_best(plan.again) if plan.again else None, arms=tuple(map(at_best, plan.arms)))


def matched_in_time(plan: Plan, speeds: Mapping[str, Mapping[str, float]]) -> Plan:
    """The plan with every arm that is matched by wall_time given as many steps as fit into the baseline's time, at the measured speeds."""
    steps = total_steps(plan.baseline.recipe.train)
    return replace(plan, arms=tuple(_in_time(arm, steps, speeds, plan) for arm in plan.arms))


def needs_speeds(plan: Plan) -> bool:
    """Whether an arm is matched by wall_time."""
    return any(arm.experiment is not None and arm.experiment.definition.match.by == "wall_time" for arm in plan.arms)


def _in_time(arm: Arm, steps: int, speeds: Mapping[str, Mapping[str, float]], plan: Plan) -> Arm:
    if arm.experiment is None or arm.experiment.definition.match.by != "wall_time":
        return arm
    if not (speeds[arm.label] and speeds[plan.baseline.label]):
        raise AblationError(f"arms matched by wall_time must run to be measured, but got none of {arm.label!r}")
    ratio = speeds[arm.label]["tokens_per_s"] / speeds[plan.baseline.label]["tokens_per_s"]
    fitting = max(1, round(steps * ratio))
    recipe = recipe_from_dict(change(to_dict(arm.recipe), {"train.steps": fitting}), allow_code=True)
    changes = tuple(one for one in differences(plan.baseline.recipe, recipe) if not one.setting.startswith("train."))
    return replace(
        arm, recipe=recipe, cost=count(recipe), changes=changes, notes=(*arm.notes, f"{fitting} steps for {steps}, equal time at {ratio:.2f}x")
    )


def _at_rate(arm: Arm, factor: float) -> Arm:
    return replace(arm, label=_label(arm, factor), recipe=_scaled(arm.recipe, factor))


def _label(arm: Arm, factor: float) -> str:
    return f"{arm.label} lr x{factor:g}"


def _scaled(recipe: Recipe, factor: float) -> Recipe:
    raw = to_dict(recipe)["optimizer"]
    rates = {".".join(("optimizer", *keys)): factor * raw[keys[0]][keys[1]] for keys in LEARNING_RATES}
    return recipe if factor == 1 else recipe_from_dict(change(to_dict(recipe), rates), allow_code=True)


def _best(plan: Plan, arm: Arm, factors: Sequence[float], outcomes: Outcomes) -> float | None:
    """The factor with the best primary metric; None when none has a finite one."""
    lower = arm.experiment is None or arm.experiment.definition.better == "lower"
    seed = plan.seeds[0] + TUNING_SEED

    def score(factor: float) -> float:
        outcome = outcomes.get((_label(arm, factor), seed))
        value = outcome.metrics.get(primary(arm), math.nan) if outcome and outcome.status == Status.FINISHED else math.nan
        return math.inf if math.isnan(value) else value if lower else -value

    best: Callable[[float], float] = score
    found = min(factors, key=best)
    return found if math.isfinite(score(found)) else None
