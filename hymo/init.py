"""Initial weights by name: every parameter has a generator of its own, seeded by sha256(seed, logical name).

So a block that changes, moves or goes leaves every other block's weights bit-equal, and two layers that change places take theirs with them.
Values are drawn on the CPU in fp32 and moved, one parameter at a time: the device makes no difference and a second copy is never held.

A parameter is filled by the first of these that knows it:

1. `Block.init_parameter` of the blocks that enclose it, the outermost first: a block may decide for its parts.
2. PyTorch's defaults: Linear (each group's too) and Conv, weight and bias, U(-1/sqrt(fan_in), 1/sqrt(fan_in)); RMSNorm and LayerNorm weight 1,
   bias 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from hymo.block import Block
from hymo.errors import HymoError
from hymo.ops.grouped_linear import GroupedLinear

Rule = Callable[[str, Tensor, torch.Generator], bool]


def generator_for(seed: int, logical_name: str) -> torch.Generator:
    """CPU generator of one parameter, a pure function of (seed, name) on every machine (unlike Python's `hash`)."""
    digest = hashlib.sha256(f"{seed}:{logical_name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


@torch.no_grad()
def initialise(module: nn.Module, seed: int, logical_names: Mapping[str, str] | None = None, rule: Rule | None = None) -> None:
    """Fill every parameter and buffer of `module`, in place, on whatever device each lies.

    `logical_names` maps a parameter's path to the name that seeds it (by default the path itself); `rule(path, weight, generator)` is asked
    before everything else. Raises HymoError when nobody knows how to fill a parameter.
    """
    for path, parameter in module.named_parameters():
        generator = generator_for(seed, logical_names[path] if logical_names is not None else path)
        value = torch.empty(parameter.shape, dtype=torch.float32)
        fill(module, path, value, generator, rule)
        parameter.copy_(_sharded_like(parameter, value))
    for block in module.modules():
        if isinstance(block, Block):
            block.init_buffers()


def fill(module: nn.Module, path: str, value: Tensor, generator: torch.Generator, rule: Rule | None = None) -> None:
    """Draw the initial value of the parameter at `path` into `value`, a CPU tensor."""
    if rule is not None and rule(path, value, generator):
        return
    for block, inner in enclosing(module, path):
        if block.init_parameter(inner, value, generator):
            return
    owner_path, _, leaf = path.rpartition(".")
    owner = module.get_submodule(owner_path)
    if isinstance(owner, (nn.Linear, GroupedLinear)):
        uniform_fan_in(value, owner.weight.shape[-1], generator)
    elif isinstance(owner, _ConvNd):
        uniform_fan_in(value, owner.weight[0].numel(), generator)
    elif isinstance(owner, (nn.RMSNorm, nn.LayerNorm)):
        value.fill_(1.0 if leaf == "weight" else 0.0)
    else:
        raise HymoError(
            f"every parameter must have an initial value, but got {path=} of {type(owner).__name__}, which is no Linear, Conv or norm; "
            "fill it in the block's init_parameter"
        )


def uniform_fan_in(value: Tensor, fan_in: int, generator: torch.Generator) -> None:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)), what PyTorch gives Linear and Conv, weight and bias alike."""
    bound = fan_in**-0.5
    value.uniform_(-bound, bound, generator=generator)


def _sharded_like(parameter: Tensor, value: Tensor) -> Tensor:
    """The same shard of `value` as `parameter` holds of its whole; every rank draws the whole value, so none is sent."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor  # 1 s to import: only where shards can exist

    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None)


def enclosing(module: nn.Module, path: str) -> Iterator[tuple[Block, str]]:
    """Blocks that hold the parameter at `path`, outermost first, each with the path inside it."""
    parts = path.split(".")
    here = module
    for depth, part in enumerate(parts):
        if isinstance(here, Block):
            yield here, ".".join(parts[depth:])
        if depth + 1 < len(parts):
            here = here.get_submodule(part)
