"""What an ablation will cost before anything of it runs: memory, time, disk. Parameters and FLOPs come with the arm (hymo/cost.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from hymo import sizing
from hymo.ablate.plan import Arm, Plan
from hymo.errors import BudgetError
from hymo.recipe import Recipe
from hymo.train.device import free_bytes
from hymo.units import in_bytes, in_time

TRAINING = 0.8  # share of the time allowed that training may take; starting, probing and measuring take the rest


@dataclass(frozen=True)
class Price:
    """Of one run of an arm, or of the whole ablation."""

    bytes: int  # memory while it trains
    seconds: float  # an estimate
    disk: int  # one checkpoint kept: weights and optimizer


def price(plan: Plan, device: torch.device, per_flop: float | None = None) -> dict[str, Price]:
    """Price of one run of each arm. Arms are taken to run in proportion to their FLOPs, at `per_flop` seconds; by default the baseline's."""
    if per_flop is None:
        per_flop = sizing.estimate(plan.baseline.recipe, device) / sizing.work(plan.baseline.recipe)
    return {arm.label: _of(arm, device, per_flop) for arm in plan.everything}


def _of(arm: Arm, device: torch.device, per_flop: float) -> Price:
    parts = sizing.memory_parts(arm.recipe, device)
    return Price(sum(parts.values()), per_flop * sizing.work(arm.recipe), parts["weights"] + parts["optimizer"])


def total(plan: Plan, prices: Mapping[str, Price], jobs: int, tries: int = 0) -> Price:
    """Price of the whole ablation with `jobs` runs at a time, and `tries` of the learning rate before it; the time includes probes and measuring."""
    seeds = len(plan.seeds) + tries
    runs = [prices[arm.label] for arm in plan.everything]
    side_by_side = sorted((one.bytes for one in runs), reverse=True)[:jobs]
    return Price(sum(side_by_side), seeds * sum(one.seconds for one in runs) / jobs / TRAINING, seeds * sum(one.disk for one in runs))


def check_memory(whole: Price, device: torch.device, jobs: int) -> None:
    """Raise BudgetError when `jobs` runs side by side cannot fit."""
    free = free_bytes(device)
    if whole.bytes > free:
        raise BudgetError(
            f"{jobs} runs side by side must fit into {in_bytes(free)} free on {sizing.describe(device)}, but they need {in_bytes(whole.bytes)}; "
            "lower --jobs, or choose a smaller --scale"
        )


def choose_scale(name: str, recipes: Mapping[str, Recipe], runs: int, jobs: int, within: float, device: torch.device) -> sizing.Choice:
    """The largest scale whose whole ablation, `runs` runs `jobs` at a time, ends within `within` seconds by estimate."""
    each = TRAINING * within * jobs / runs
    choice = sizing.choose(name, recipes, each, device)
    said = f"{runs} runs, {jobs} at a time, within {in_time(within)}: {in_time(each)} to train each, and a fifth for probes and measuring."
    return replace(choice, words=[said, *choice.words])
