"""Holding an arm to the baseline: an arm that is larger wins for no good reason.

An arm outside the tolerance is refused, or brought back by the whole-number widths that its experiment names for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hymo.ablate.definition import Experiment, Match, at, change
from hymo.cost import Cost, count
from hymo.errors import RecipeError
from hymo.recipe import Recipe, recipe_from_dict, to_dict

WIDEST = 64  # times its value: further than that is another model
ITERATIONS = 8


def quantity(by: str, cost: Cost) -> float:
    """What is held equal, as a number."""
    return float(cost.active if by == "active_params" else cost.flops_per_token_train)


def matched(experiment: Experiment, arm: str, recipe: Recipe, baseline: Cost) -> tuple[Recipe, tuple[str, ...]]:
    """The arm's recipe within its experiment's match, and what was solved for it. Raises AblationError for an arm that cannot be held.

    The widths are solved in the order the experiment names them, a coarse one first, until the arm is within the tolerance. wall_time is matched
    later, by steps, once speeds are measured.
    """
    match = experiment.definition.match
    if match.by in ("none", "wall_time"):
        return recipe, ()
    target = quantity(match.by, baseline)
    first = off = quantity(match.by, count(recipe)) / target - 1
    solved: list[str] = []
    for name in match.solve:
        if abs(off) <= match.tolerance:
            break
        raw = to_dict(recipe)
        width = at(raw, tuple(name.split(".")))
        if isinstance(width, int) and not isinstance(width, bool) and width > 0:
            closer = _solve(raw, name, width, match, target)
            if closer is not None and abs(closer[2]) < abs(off):
                solved.append(f"{name} {width} → {closer[1]}: {match.by} {off:+.2%} → {closer[2]:+.2%}")
                recipe, off = closer[0], closer[2]
    if abs(off) <= match.tolerance:
        return recipe, tuple(solved)
    tried = (
        f"solving {'; '.join(solved)} is not enough"
        if solved
        else "name a width in match.solve"
        if not match.solve
        else "it has no width of match.solve"
    )
    raise experiment.error(
        f"arm {arm!r} must keep {match.by} within {match.tolerance * 100:g} % of the baseline's, but got {first:+.2%}; {tried}, or match by none",
        "arms",
        arm,
    )


def _solve(raw: dict[str, Any], field: str, width: int, match: Match, target: float) -> tuple[Recipe, int, float] | None:
    """(recipe, width, what is left of the difference) at the width that comes closest.

    Widths are tried in the coarsest steps first, since a block may take multiples only; a width that a block refuses does not exist.
    """
    measure = functools.cache(lambda value: _at_width(raw, field, value, match, target))
    best: tuple[Recipe, int, float] | None = None
    step = width & -width
    while step >= 1 and (best is None or abs(best[2]) > match.tolerance):
        found = [one for value in _approach(measure, step, width) if (one := measure(value)) is not None]
        best = min([*found, *([best] if best else [])], key=lambda one: abs(one[2]), default=None)
        step //= 2
    return best


def _approach(measure: Callable[[int], tuple[Recipe, int, float] | None], step: int, width: int) -> set[int]:
    """Multiples of `step` around the width where the difference vanishes, by the secant method: parameters and FLOPs are nearly linear in a width."""
    before, now = width, 2 * width
    for _ in range(ITERATIONS):
        one, two = measure(before), measure(now)
        if one is None or two is None or one[2] == two[2]:
            break
        exact = now - two[2] * (now - before) / (two[2] - one[2])
        nearest = max(step, min(WIDEST * width, round(exact / step) * step))
        if nearest in (before, now):
            break
        before, now = now, nearest
    return {value for value in (now - step, now, now + step, before) if value > 0}


def _at_width(raw: dict[str, Any], field: str, width: int, match: Match, target: float) -> tuple[Recipe, int, float] | None:
    try:
        recipe = recipe_from_dict(change(raw, {field: width}))
    except RecipeError:
        return None
    return recipe, width, quantity(match.by, count(recipe)) / target - 1
