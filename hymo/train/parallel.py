"""One process per device: who takes part, how they agree, and how FSDP2 shards the model over them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hymo.errors import BudgetError, HymoError
from hymo.recipe.tree import DEVICE

if TYPE_CHECKING:
    from hymo.model import HyMo

T = TypeVar("T")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID")     # in a step: not in sbatch's own script


@dataclass(frozen=True)
class World:
    """The processes of one run. A world of one needs no process group."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """True in the process that writes and reports."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor summed over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        """Wait for everybody."""
        if self.size > 1:
            dist.barrier()

    def share(self, value: T) -> T:
        """Rank 0's value, everywhere."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def everywhere(self, yes: bool) -> bool:
        """True when every process says yes."""
        return bool(self.sum(torch.tensor(float(not yes), device=self.device)).item() == 0)


def rendezvous(env: Mapping[str, str]) -> dict[str, str]:
    """torchrun's five variables, from torchrun itself or from the SLURM step that this is a task of; {} when the process runs alone."""
    if "RANK" in env and "WORLD_SIZE" in env:
        missing = [name for name in TORCHRUN if name not in env]
        if missing:
            raise HymoError(f"a distributed run needs {', '.join(TORCHRUN)} in its environment, but got no {missing[0]}; start it with torchrun")
        return {name: env[name] for name in TORCHRUN}
    if all(name in env for name in SLURM) and int(env["SLURM_STEP_NUM_TASKS"]) > 1:
        rank, size, local_rank, nodes, job = (env[name] for name in SLURM)
        address = env.get("MASTER_ADDR", first_host(nodes))
        port = env.get("MASTER_PORT", str(20000 + int(job) % 20000))      # the same in every task, another one in the next job
        return dict(zip(TORCHRUN, (rank, size, local_rank, address, port), strict=True))
    return {}


def first_host(nodes: str) -> str:
    """'gpu[03-05,9],cpu1' → 'gpu03': the first host of a SLURM node list."""
    found = re.match(r"([^\[,]+)(?:\[([^-,\]]+))?", nodes)
    if found is None:
        raise HymoError(f"SLURM_STEP_NODELIST must name a host, but got {nodes!r}; set MASTER_ADDR")
    return found[1] + (found[2] or "")


def find_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The device of `train.device`: auto is the GPU when there is one. Raises BudgetError when the one that was asked for is not there."""
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted
    if not re.fullmatch(DEVICE, kind):
        raise BudgetError(f"a device must be auto, cpu, cuda or cuda:N, but got {wanted!r}")
    device = torch.device(kind)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise BudgetError(f"a device must be one of this machine, but got {wanted!r} and torch finds no such device; use cpu")
    index = device.index if device.index is not None else local_rank
    if index >= torch.cuda.device_count():
        raise BudgetError(f"every process needs a GPU of its own, but got process {index} and {torch.cuda.device_count()} GPUs; start fewer")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The world of this process: joins the group that torchrun or SLURM prepared, and leaves it at the end. A group that exists is used as it is."""
    found = rendezvous(os.environ)
    if not found and not dist.is_initialized():
        yield World(find_device(device))
        return
    mine = not dist.is_initialized()
    place = find_device(device, int(found.get("LOCAL_RANK", 0)))
    if mine:
        os.environ.update(found)
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo", device_id=place if place.type == "cuda" else None)
    try:
        yield World(place, dist.get_rank(), dist.get_world_size())
    finally:
        if mine:
            dist.destroy_process_group()


def shard(model: HyMo, world: World) -> None:
    """FSDP2: every layer's parameters, and then the rest, sharded over the world by rows, in place.

    Masters, gradients and optimizer states are shards in fp32; layers compute under autocast as they do on one device. A layer's
    gathered weights stay through the micro-batches of a step, so that a step gathers and reduces once. Parameters that take no gradient (a
    router's balancing bias) stay whole and equal on all ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(world.device.type, (world.size,))
    frozen = {p for p in model.parameters() if not p.requires_grad}
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=False, ignored_params=frozen)
    register_fsdp_forward_method(model, "loss")


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor (a view of it); any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor     # importing DTensor to ask its type costs a second
