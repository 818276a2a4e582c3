"""How many rows a device takes at once: a divisor of its rows, so that every pass has one shape."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hymo.cost import memory
from hymo.data.batch import Batch
from hymo.errors import BudgetError, RecipeError
from hymo.recipe import Recipe
from hymo.train.device import free_bytes
from hymo.train.parallel import World
from hymo.train.schedule import rows_per_step
from hymo.train.step import Stepper

ROOM = 0.9      # share of the free memory that an estimate may fill
log = logging.getLogger("hymo")


def rows_per_rank(recipe: Recipe, devices: int) -> int:
    """Rows of an optimizer step that each device takes. Raises RecipeError when they do not come out whole."""
    rows, rest = divmod(rows_per_step(recipe.train), devices)
    if rest:
        raise RecipeError(
            f"the rows of a step (train.tokens_per_step / train.seq_len) must spread evenly over the devices, "
            f"but got {rows_per_step(recipe.train)} rows for {devices} devices; change train.tokens_per_step"
        )
    return rows


def candidates(recipe: Recipe, world: World) -> list[int]:
    """Sizes to consider, the largest first: what the recipe says, or every divisor of a rank's rows."""
    rows = rows_per_rank(recipe, world.size)
    wanted = recipe.train.micro_batch
    if wanted == "auto":
        return [size for size in range(rows, 0, -1) if rows % size == 0]
    if rows % wanted:
        raise RecipeError(
            f"train.micro_batch must divide the rows that a device takes in a step (train.tokens_per_step / train.seq_len / devices), {rows}, "
            f"but got {wanted}; use {max(size for size in range(1, rows + 1) if rows % size == 0 and size <= wanted)}"
        )
    return [wanted]


def estimated(recipe: Recipe, world: World) -> int:
    """The largest candidate whose estimated memory fits the device. Raises BudgetError, with the parts, when none does."""
    sizes = candidates(recipe, world)
    if len(sizes) == 1:
        return sizes[0]
    room = ROOM * free_bytes(world.device)
    for size in sizes:
        if sum(memory(recipe, size, world.device.type).values()) <= room:
            return size
    raise BudgetError(
        f"a row of {recipe.train.seq_len} tokens must fit the device, but {room / 2**30:.1f} GiB can be used and it needs {needs(recipe, 1, world)}; "
        "use a smaller scale, train.checkpoint_activations=true or more devices, or name train.micro_batch to try all the same"
    )


def needs(recipe: Recipe, rows: int, world: World) -> str:
    """The estimate in words: 'weights 4.20, gradients 4.20, … GiB'."""
    return ", ".join(f"{name} {size / 2**30:.2f}" for name, size in memory(recipe, rows, world.device.type).items()) + " GiB"


@contextmanager
def within_memory(what: str, recipe: Recipe, rows: int, world: World) -> Iterator[None]:
    """Say of GPU memory that runs out in `what` which parts fill it at `rows` rows at once, and what to change. Raises BudgetError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise BudgetError(
            f"{what} must fit the GPU, but its memory ran out with micro-batches of {rows} rows, about {needs(recipe, rows, world)}; "
            "set train.micro_batch to less or to auto, or train.checkpoint_activations=true, or take a smaller scale or more devices"
        ) from error


def tried(stepper: Stepper, recipe: Recipe, heads: int) -> int:
    """On a GPU: `stepper.micro_batch`, or the largest smaller candidate that a forward and backward pass fits in memory with, found by trying.

    The optimizer's state is allocated already, gradients are by the pass; nothing of the try is left behind.
    """
    sizes = [size for size in candidates(recipe, stepper.world) if size <= stepper.micro_batch]
    before = [tensor.clone() for tensor in stepper.balancing]
    found = 0
    for size in sizes:
        fits = stepper.world.everywhere(fits_in_memory(stepper, recipe, size, heads))
        for tensor, old in zip(stepper.balancing, before, strict=True):
            tensor.copy_(old)
        stepper.optimizers.zero_grad()
        torch.cuda.empty_cache()
        if fits:
            found = size
            break
        log.warning("a micro-batch of %d rows does not fit in GPU memory; trying a smaller one", size)
    torch.cuda.reset_peak_memory_stats(stepper.world.device)
    if not found:
        total, rows = torch.cuda.mem_get_info(stepper.world.device)[1], sizes[-1]
        raise BudgetError(
            f"a micro-batch of {rows} rows must fit the GPU's {total / 2**30:.0f} GiB, but it needs about {needs(recipe, rows, stepper.world)}; "
            "use train.micro_batch=auto, train.checkpoint_activations=true, a shorter train.seq_len, a smaller scale or more devices"
        )
    return found


def fits_in_memory(stepper: Stepper, recipe: Recipe, size: int, heads: int) -> bool:
    """True when a pass of `size` rows runs, as it will: compiled layers need less memory than the same uncompiled."""
    device, shape = stepper.world.device, (size, recipe.train.seq_len + 1)
    batch = Batch(torch.zeros(shape, dtype=torch.int64, device=device), torch.zeros(shape, dtype=torch.int32, device=device))
    try:
        stepper.backward(batch, torch.ones(heads + 1, device=device))
        torch.cuda.synchronize(device)
        return True
    except torch.OutOfMemoryError:
        return False
