"""Tensors of a checkpoint in safetensors files: whole, or in shards through torch's Distributed Checkpoint (DCP).

DCP's own file format keeps its index in a pickle; its safetensors format keeps it in the files' JSON headers, so that reading runs no code.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hymo.errors import CheckpointError

if TYPE_CHECKING:
    from hymo.train.parallel import World


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The full shape of every tensor in the folder's files."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name).get_shape()
                begin = header[name]["saved_offsets"] if header else [0] * len(part)
                end = tuple(b + n for b, n in zip(begin, part, strict=True))
                found[name] = tuple(map(max, end, found.get(name, end)))
    return found


def write_plain(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write whole tensors to one file."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def read_plain(folder: Path, into: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into those of the same name."""
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file, torch.no_grad():
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                if tensor.dtype != into[name].dtype:
                    what = f"{path} has {tensor.dtype} for {name!r}"
                    raise CheckpointError(f"a checkpoint's tensors must be of the run's own types, but {what}; hymo did not write it")
                into[name].copy_(tensor)


def write_sharded(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write every rank's shards. Called by all ranks; raises OSError on all of them when one fails."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise OSError(next(iter(error.failures.values()))[0]) from None


def read_sharded(folder: Path, into: Mapping[str, Tensor], world: World) -> None:
    """Fill tensors, sharded or not, from files that any number of ranks wrote. Called by all ranks."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(dict(into), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=world.size == 1)
