"""From paired differences to a verdict.

For one arm with differences x_1..x_n (arm − baseline at equal seeds), mean x̄ and standard deviation s:

    interval   x̄ ± t_{1−α/2, n−1} · s/√n
    p          two-sided, paired t;  Holm (1979) over the arms of the ablation
    p_tost     Schuirmann (1987): the larger p of two one-sided tests against ±margin;  p_tost < α  ⇔  the 1−2α interval lies inside ±margin

A bootstrap over seeds would undercover (74 % where 95 % is claimed, at n = 3), so the seeds get Student's t. Every function works on arrays whose
last axes are (arms, seeds) and takes any number of leading axes: the command judges one ablation and the tests judge thousands through the same call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

from hymo.ablate.power import MOST_SEEDS, alpha_shares, detectable_effect, seeds_needed
from hymo.ablate.verdict import Verdict
from hymo.errors import AblationError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Judgement:
    """Arrays of shape (…, arms). `low` and `high` bound the interval at 1 − alpha."""

    mean: Floats
    sd: Floats
    low: Floats
    high: Floats
    p: Floats
    p_holm: Floats
    p_tost: Floats
    verdict: NDArray[np.str_]
    seeds: int
    alpha: float
    delta_min: Floats
    margin: Floats

    @property
    def arms(self) -> int:
        """Size of the family over which Holm corrects."""
        return int(self.mean.shape[-1])

    def detectable(self, arm: int, corrected: bool = True) -> float:
        """Difference that this many seeds find with 80 % power, in the metric's units; `corrected` at Holm's first step among the arms."""
        return detectable_effect(self.seeds, self.alpha, self.arms if corrected else 1) * float(self.sd[arm])

    def more_seeds(self, arm: int) -> int | None:
        """Seeds still needed, one at least, to find max(|Δ|, delta_min) with 80 % power at Holm's first step; None when over a thousand."""
        sd = float(self.sd[arm])
        if not np.isfinite(sd) or sd == 0:
            return 1 if self.seeds > 1 else None
        target = max(abs(float(self.mean[arm])), float(self.delta_min[arm]))
        needed = seeds_needed(target / sd, self.alpha, self.arms)
        return None if needed is None else max(1, needed - self.seeds)

    def words(self, arm: int) -> str:
        """The verdict as the table prints it."""
        verdict = str(self.verdict[arm])
        if verdict != Verdict.INCONCLUSIVE:
            return verdict
        if self.seeds < 2:
            return f"{verdict}: one seed never names a winner"
        more = self.more_seeds(arm)
        if more is None:
            return f"{verdict}: needs over {MOST_SEEDS} seeds"
        return f"{verdict}: needs {more} more seed{'s' if more > 1 else ''}"


def holm(p: ArrayLike) -> Floats:
    """p values adjusted over the last axis: p̃_(i) = max_{j≤i} min(1, (m−j+1)·p_(j)) (Holm 1979)."""
    raw = np.asarray(p, dtype=float)
    m = raw.shape[-1]
    order = np.argsort(raw, axis=-1, kind="stable")
    stepped = np.take_along_axis(raw, order, axis=-1) * (m - np.arange(m))
    adjusted = np.minimum(np.maximum.accumulate(stepped, axis=-1), 1.0)
    result = np.empty_like(adjusted)
    np.put_along_axis(result, order, adjusted, axis=-1)
    return result


def judge(
    differences: ArrayLike,
    *,
    delta_min: ArrayLike,
    margin: ArrayLike,
    alpha: float = 0.05,
    lower_is_better: ArrayLike = True,
    lr_unresolved: ArrayLike = False,
) -> Judgement:
    """Verdicts on paired differences of shape (…, arms, seeds); a NaN or infinity marks a seed that diverged.

    delta_min (smallest effect that matters), margin (of equivalence), lower_is_better and lr_unresolved are scalars or one per arm. Raises
    AblationError when a bound is not positive.
    """
    x = np.asarray(differences, dtype=float)
    if x.ndim < 2 or x.shape[-1] < 1:
        raise AblationError(f"differences must have shape (…, arms, seeds) with a seed at least, but got shape={x.shape}")
    shape, n = x.shape[:-1], x.shape[-1]
    smallest = _positive("delta_min", delta_min, shape[-1])
    bound = _positive("margin", margin, shape[-1])
    stable = np.isfinite(x).all(axis=-1)
    x = np.where(stable[..., None], x, 0.0)

    mean = x.mean(axis=-1)
    sd = x.std(axis=-1, ddof=1) if n > 1 else np.full(shape, np.nan)
    error = sd / sqrt(n)
    p, low, high = _two_sided(mean, error, n, alpha)
    p_tost = np.maximum(_one_sided(bound - mean, error, n), _one_sided(bound + mean, error, n))
    # A seed that diverged leaves no test behind, and its arm stays in the family: dropping it would make the others' test easier.
    p, p_tost = np.where(stable, p, 1.0), np.where(stable, p_tost, 1.0)
    p_holm = holm(p)

    significant = p_holm < alpha
    good = (mean < 0) == np.broadcast_to(np.asarray(lower_is_better), shape)
    matters = significant & (np.abs(mean) >= smallest)
    verdict = np.select(
        [
            ~stable,
            np.broadcast_to(np.asarray(lr_unresolved), shape),
            matters & good,
            matters,
            significant & (low > -smallest) & (high < smallest),
            p_tost < alpha,
        ],
        [Verdict.UNSTABLE, Verdict.LR_UNRESOLVED, Verdict.BETTER, Verdict.WORSE, Verdict.NEGLIGIBLE, Verdict.EQUIVALENT],
        default=Verdict.INCONCLUSIVE,
    )
    blank = np.where(stable, 0.0, np.nan)
    return Judgement(mean + blank, sd + blank, low + blank, high + blank, p, p_holm, p_tost, verdict, n, alpha, smallest, bound)


def judge_at_looks(
    differences: ArrayLike,
    looks: Sequence[int],
    *,
    delta_min: ArrayLike,
    margin: ArrayLike,
    alpha: float = 0.05,
    lower_is_better: ArrayLike = True,
    lr_unresolved: ArrayLike = False,
) -> tuple[list[Judgement], NDArray[np.str_]]:
    """`--until decided`: judge after each look's seeds at that look's share of alpha; a verdict stands from the first look that gives one.

    `looks` are all that were planned; those that the differences do not reach yet are left out, and keep their share. Returns the judgement of every
    look reached and the standing verdicts, shape (…, arms).
    """
    x = np.asarray(differences, dtype=float)
    reached = [
        judge(x[..., :look], delta_min=delta_min, margin=margin, alpha=share, lower_is_better=lower_is_better, lr_unresolved=lr_unresolved)
        for look, share in zip(looks, alpha_shares(looks, alpha), strict=True)
        if look <= x.shape[-1]
    ]
    if not reached:
        raise AblationError(f"the first look needs {looks[0]} seeds, but got seeds={x.shape[-1]}")
    standing = reached[0].verdict
    for judgement in reached[1:]:
        standing = np.where(standing == Verdict.INCONCLUSIVE, judgement.verdict, standing)
    return reached, standing


@dataclass(frozen=True)
class Best:
    """The candidate with the lowest mean, tested against the runner-up. Arrays of the leading shape; `named` says whether it may be called best."""

    index: NDArray[np.intp]
    runner_up: NDArray[np.intp]
    mean: Floats
    low: Floats
    high: Floats
    p: Floats
    named: NDArray[np.bool_]


def best(values: ArrayLike, alpha: float = 0.05) -> Best:
    """Name the best of values (…, candidates, seeds), lower is better, the baseline among them; a candidate that diverged cannot win.

    The selected candidate is compared with the runner-up by a two-sided paired t test at `alpha`; no further correction is needed (Gutmann and
    Maymin 1987).
    """
    x = np.asarray(values, dtype=float)
    if x.ndim < 2 or x.shape[-2] < 2:
        raise AblationError(f"naming a best needs two candidates at least, but got shape={x.shape}")
    stable = np.isfinite(x).all(axis=-1)
    x = np.where(stable[..., None], x, np.inf)
    order = np.argsort(x.mean(axis=-1), axis=-1, kind="stable")
    first, second = order[..., 0], order[..., 1]

    def pick(which: NDArray[np.intp]) -> Floats:
        return np.take_along_axis(x, which[..., None, None], axis=-2)[..., 0, :]

    n = x.shape[-1]
    both = np.take_along_axis(stable, second[..., None], axis=-1)[..., 0]
    gap = np.where(both[..., None], pick(first), 0.0) - np.where(both[..., None], pick(second), 0.0)
    mean = gap.mean(axis=-1)
    error = (gap.std(axis=-1, ddof=1) if n > 1 else np.full(mean.shape, np.nan)) / sqrt(n)
    p, low, high = _two_sided(mean, error, n, alpha)
    p = np.where(both, p, 1.0)
    return Best(first, second, mean, low, high, p, p < alpha)


def noise_floor(baseline: ArrayLike, again: ArrayLike) -> tuple[float, float]:
    """(sd of the paired difference, correlation across seeds) of the baseline and its A/A arm: what no effect at all looks like.

    Two seeds always lie on a line: their correlation is NaN.
    """
    a, b = np.asarray(baseline, dtype=float), np.asarray(again, dtype=float)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise AblationError(f"a noise floor needs two seeds at least of the baseline and of its A/A arm, but got shapes {a.shape} and {b.shape}")
    unknown = len(a) < 3 or a.std() == 0 or b.std() == 0
    return float((b - a).std(ddof=1)), float("nan") if unknown else float(np.corrcoef(a, b)[0, 1])


def interaction(baseline: ArrayLike, first: ArrayLike, second: ArrayLike, both: ArrayLike) -> Floats:
    """Per-seed interaction of two factors, (both − first) − (second − baseline): zero when effects add up. `judge` takes it like any difference."""
    base, one, two, joint = (np.asarray(values, dtype=float) for values in (baseline, first, second, both))
    difference: Floats = (joint - one) - (two - base)
    return difference


def _positive(name: str, value: ArrayLike, arms: int) -> Floats:
    """One bound per arm. Raises AblationError unless every one is above 0."""
    bounds = np.broadcast_to(np.asarray(value, dtype=float), (arms,))
    if not np.all(bounds > 0):
        raise AblationError(f"{name} must be above 0, but got {name}={bounds.min():g}; it is a difference that matters, in the metric's units")
    return bounds


def _two_sided(mean: Floats, error: Floats, n: int, alpha: float) -> tuple[Floats, Floats, Floats]:
    """p value and 1 − alpha interval of a mean with this standard error. One seed: p = 1 and an unbounded interval."""
    if n < 2:
        return np.ones_like(mean), np.full_like(mean, -np.inf), np.full_like(mean, np.inf)
    half = t.isf(alpha / 2, n - 1) * error
    return 2 * t.sf(np.abs(_ratio(mean, error)), n - 1), mean - half, mean + half


def _one_sided(distance: Floats, error: Floats, n: int) -> Floats:
    """p value of the hypothesis that the true distance to a bound is not positive."""
    return t.sf(_ratio(distance, error), n - 1) if n > 1 else np.ones_like(distance)


def _ratio(mean: Floats, error: Floats) -> Floats:
    """mean/error, with 0/0 = 0: equal runs differ by nothing, for certain (an arm that computes the same as the baseline)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(mean == 0, 0.0, mean / error)
