"""How much a number of seeds can show, before any is run.

    power(d, n, α) = P(|T| > t_{1−α/2, n−1}),  T ~ noncentral t with n−1 degrees of freedom and noncentrality d·√n

T² is noncentral F(1, n−1) with noncentrality n·d², which scipy computes without the noncentral t's underflow in the far tail.

d is the true paired difference in units of its standard deviation (Cohen's d_z), n the number of seeds. Everything here follows from that line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from scipy.optimize import brentq
from scipy.stats import f, ncf

from hymo.errors import AblationError

POWER = 0.8  # the customary chance of finding an effect that is there
MOST_SEEDS = 1000  # no plan asks for more; "over 1000" is answer enough


def power(effect: float, seeds: int, alpha: float = 0.05) -> float:
    """Chance that a two-sided paired t test at level `alpha` finds a true difference of `effect` standard deviations with `seeds` pairs."""
    return float(ncf.sf(f.isf(alpha, 1, seeds - 1), 1, seeds - 1, seeds * effect**2))


@lru_cache(maxsize=4096)
def detectable_effect(seeds: int, alpha: float = 0.05, arms: int = 1) -> float:
    """Smallest difference, in standard deviations of the paired difference, found with 80 % power.

    With `arms` > 1 the level is that of Holm's first step, alpha/arms: what the first of several arms has to pass. Infinite for fewer than two seeds.
    """
    if seeds < 2:
        return float("inf")
    level = alpha / arms
    ceiling = 1.0
    while power(ceiling, seeds, level) < POWER:
        ceiling *= 2
    return float(brentq(lambda effect: power(effect, seeds, level) - POWER, 0.0, ceiling, xtol=1e-10))


def seeds_needed(effect: float, alpha: float = 0.05, arms: int = 1) -> int | None:
    """Fewest seeds that find a difference of `effect` standard deviations with 80 % power; None when over a thousand would be needed."""
    if not effect > 0:
        return None
    first = bisect_left(range(2, MOST_SEEDS + 1), -effect, key=lambda seeds: -detectable_effect(seeds, alpha, arms))
    return None if first == MOST_SEEDS - 1 else first + 2


def alpha_shares(looks: Sequence[int], alpha: float = 0.05) -> list[float]:
    """Share of `alpha` that each look may spend: α·(n_k − n_{k−1})/n_K, the linear spending function of Lan and DeMets (1983).

    The shares add up to `alpha` and each look is tested at its own share, so that by the union bound the chance of any false finding over all the
    looks stays below `alpha` whatever the differences' distribution over time. Looking after every seed from 3 to 10 at the full level makes 17 %.
    """
    if len(looks) == 0 or looks[0] < 2 or any(later <= earlier for earlier, later in pairwise(looks)):
        raise AblationError(f"looks must be increasing numbers of seeds from 2 on, but got looks={list(looks)}; for example 3,5,8")
    before = [0, *looks[:-1]]
    return [alpha * (look - previous) / looks[-1] for previous, look in zip(before, looks, strict=True)]
