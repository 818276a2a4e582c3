"""What a device is: its datasheet peak, the type it computes in, the memory it has and has used."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Literal

import torch

from hymo.errors import RecipeError
from hymo.train import cgroup

# Dense bf16 tensor-core peaks of the makers' datasheets, TFLOP/s (without structured sparsity), by a name that stands in torch's device name.
# The first that matches counts, so a longer name stands before the shorter one that it contains.
DATASHEET_TFLOPS = {
    "GB300": 2500.0,
    "B300": 2250.0,
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200": 989.4,
    "GH200": 989.4,
    "H100 NVL": 835.5,
    "H100 PCIe": 756.5,
    "H100": 989.4,
    "H800": 989.4,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "A40": 149.7,
    "A30": 165.0,
    "A10G": 70.0,
    "A10": 125.0,
    "L40S": 362.1,
    "L40": 181.1,
    "L4": 121.0,
    "RTX 6000 Ada": 364.2,
    "RTX A6000": 154.8,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
    "MI325X": 1307.4,
    "MI300X": 1307.4,
    "MI250X": 383.0,
}


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of the datasheet for bf16; None for a device that is not in the table, for a CPU, and for any other type: no default is ever taken."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((tflops * 1e12 for known, tflops in DATASHEET_TFLOPS.items() if is_named(known, name)), None)


def is_named(known: str, name: str) -> bool:
    """True when the words of `known` stand in a row in a device's name: 'A10' names 'NVIDIA A10', not 'NVIDIA A100-SXM4'."""
    words, wanted = name.replace("-", " ").split(), known.split()
    return any(words[i : i + len(wanted)] == wanted for i in range(len(words)))


def compute_dtype(wanted: Literal["auto", "bf16", "fp32"], device: torch.device) -> torch.dtype:
    """The type of `train.dtype`: auto is bf16 on a GPU that computes in it, fp32 elsewhere. Raises RecipeError for bf16 on a GPU without it."""
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if wanted == "bf16" and device.type == "cuda" and not has_bf16:
        raise RecipeError(f"train.dtype bf16 needs a GPU that computes in it, but got {torch.cuda.get_device_name(device)}; use train.dtype=fp32")
    return torch.bfloat16 if wanted == "bf16" or (wanted == "auto" and has_bf16) else torch.float32


def peak_bytes(device: torch.device) -> int:
    """The most memory that tensors took on the GPU, or that the process took on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")      # getrusage would count what the process that started this one had taken by then
    if status.is_file() and (found := re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)):
        return int(found[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def free_bytes(device: torch.device) -> int:
    """Memory that a run could still take: on a GPU, what torch holds and does not use included; on a CPU, within its job's or container's limits."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    import psutil

    available, allowed = int(psutil.virtual_memory().available), cgroup.bytes_left()
    return available if allowed is None else min(available, allowed)
