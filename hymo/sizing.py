"""Which scale of a recipe suits this machine, and whether a recipe fits it at all. Nothing is allocated before the answer.

    time >= training FLOPs of the whole run / rate of a large matrix product here        (rules scales out, in milliseconds)
    time ~= seconds of a micro-batch and of an update here, times their numbers          (estimates those that are left)

plus the forward passes of its validations. The second figures are measured on the model itself: small models are far from the matrix rate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hymo.cost import count, memory
from hymo.data import Batch
from hymo.environment import cores, cpu_model
from hymo.errors import BudgetError
from hymo.model import build_hymo
from hymo.recipe import Recipe
from hymo.train.device import compute_dtype, free_bytes
from hymo.train.optimizer import Optimizers
from hymo.train.schedule import interval, rows_per_step, total_steps
from hymo.units import in_bytes, in_time

SHARDED = ("weights", "gradients", "optimizer")  # parts that FSDP divides among the devices
TRIAL_TOKENS, TRIAL_S = 4096, 10.0


@dataclass(frozen=True)
class Need:
    """What a recipe takes on this machine."""

    scale: str
    recipe: Recipe
    parts: dict[str, int]       # bytes on one device
    seconds: float              # estimate, or a lower bound
    bound: bool                 # True: no less than `seconds`

    @property
    def bytes(self) -> int:
        """Bytes on one device, all parts together."""
        return sum(self.parts.values())

    @property
    def time(self) -> str:
        """The time in words."""
        return ("at least " if self.bound else "about ") + in_time(self.seconds)


@dataclass(frozen=True)
class Choice:
    """The scale that was chosen, and every other that was weighed."""

    chosen: Need
    others: list[Need]
    words: list[str]


def memory_parts(recipe: Recipe, device: torch.device, world: int = 1) -> dict[str, int]:
    """Bytes that training takes on each of `world` devices, by part, at the recipe's micro-batch (`auto`: one row)."""
    rows = 1 if recipe.train.micro_batch == "auto" else recipe.train.micro_batch
    parts = memory(recipe, rows, device.type)
    return {name: size // world if name in SHARDED else size for name, size in parts.items()}


def check_memory(recipe: Recipe, device: torch.device, world: int = 1) -> None:
    """Raise BudgetError, with the numbers and the way out, when training cannot fit. Call before anything is allocated."""
    parts, free = memory_parts(recipe, device, world), free_bytes(device)
    need = sum(parts.values())
    if need > free:
        listed = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items())
        raise BudgetError(
            f"training must fit into {in_bytes(free)} free on {describe(device)}, but {recipe.name} needs {in_bytes(need)} ({listed}); "
            f"leave --scale out to get one that fits, shorten train.seq_len, set train.checkpoint_activations=true, or take more devices with --nproc"
        )


def choose(name: str, recipes: Mapping[str, Recipe], within: float, device: torch.device, world: int = 1) -> Choice:
    """The largest of a recipe's scales (by training FLOPs) that fits the memory and ends within `within` seconds by estimate, and why, in words.

    When none ends in time it is the smallest. Raises BudgetError when not even that fits the memory.
    """
    free, rate = free_bytes(device), matmul_rate(device) * world
    weighed: list[Need] = []
    chosen: Need | None = None
    for flops, scale, recipe in sorted(((work(recipe), scale, recipe) for scale, recipe in recipes.items()), key=lambda sized: -sized[0]):
        parts, bound = memory_parts(recipe, device, world), flops / rate
        need = Need(scale, recipe, parts, bound, bound=True)
        if chosen is None and need.bytes <= free and bound <= within:
            need = Need(scale, recipe, parts, estimate(recipe, device) / world, bound=False)
            if need.seconds <= within:
                chosen = need
        weighed.append(need)
    largest, least = weighed[0], weighed[-1]
    if least.bytes > free:
        raise BudgetError(
            f"a scale must fit into {in_bytes(free)}, but the smallest of {name}, {least.scale}, needs {in_bytes(least.bytes)}; free some memory, "
            f"or write a smaller scale"
        )
    here, limit = f"{describe(device)}, {in_bytes(free)} free", in_time(within)
    why = f"the largest of {name} that fits here ({here}) and ends within {limit}" if chosen else f"none of {name} ends within {limit} here ({here})"
    chosen = chosen or least
    words = [f"scale {chosen.scale}: {why}; it takes {chosen.time} and {in_bytes(chosen.bytes)}."]
    if largest is not chosen:
        words.append(
            f"{largest.scale} would need {in_bytes(largest.bytes)} and {largest.time}; force a scale with --scale {largest.scale}, "
            f"or allow more time with --within 2h."
        )
    return Choice(chosen, [need for need in weighed if need is not chosen], words)


def work(recipe: Recipe) -> float:
    """Training FLOPs of the whole run."""
    return count(recipe).flops_per_token_train * total_steps(recipe.train) * recipe.train.tokens_per_step


def estimate(recipe: Recipe, device: torch.device) -> float:
    """Seconds of the whole run on one device, from the pace of a trial; a validation's token costs a third of a training token."""
    steps = total_steps(recipe.train)
    validated = recipe.eval.tokens * (steps // interval(recipe.eval.every, steps)) / 3
    per_token, per_update = pace(recipe, device)
    return per_token * (steps * recipe.train.tokens_per_step + validated) + per_update * steps


def pace(recipe: Recipe, device: torch.device) -> tuple[float, float]:
    """Seconds that a token takes forward and backward, and seconds of an optimizer's update, on random tokens: the faster of two trials after one to
    warm up, which is all there is when it takes long."""
    rows = min(rows_per_step(recipe.train), max(1, TRIAL_TOKENS // recipe.train.seq_len))
    if recipe.train.micro_batch != "auto":
        rows = min(rows, recipe.train.micro_batch)
    model = build_hymo(recipe, device=device).train()
    optimizers = Optimizers(model, recipe.optimizer)
    tokens = torch.randint(recipe.model.vocab_size, (rows, recipe.train.seq_len + 1), device=device)
    batch = Batch(tokens, torch.zeros_like(tokens, dtype=torch.int32))
    dtype = compute_dtype(recipe.train.dtype, device)
    passes: list[float] = []
    updates: list[float] = []
    while len(passes) < 3 and sum(passes) < TRIAL_S:
        began = _now(device)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            losses = model.loss(batch)
        torch.autograd.backward([losses.main_sum, *losses.mtp_sums])
        passed = _now(device)
        optimizers.step(0.0)
        optimizers.zero_grad()
        passes.append(passed - began)
        updates.append(_now(device) - passed)
    return min(passes[1:] or passes) / (rows * recipe.train.seq_len), min(updates[1:] or updates)


def matmul_rate(device: torch.device) -> float:
    """FLOP/s of a large matrix product in the type that training computes in."""
    size = 8192 if device.type == "cuda" else 1024
    dtype = compute_dtype("auto", device)
    a = torch.ones(size, size, device=device, dtype=dtype)
    taken = []
    for _ in range(4):
        began = _now(device)
        a @ a
        taken.append(_now(device) - began)
    return 2 * size**3 / min(taken[1:])


def describe(device: torch.device) -> str:
    """The device in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{cores()} CPU cores ({cpu_model()})"


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
