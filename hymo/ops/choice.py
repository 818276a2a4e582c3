"""Which implementation of an operation runs: the one asked for, or its Triton kernel where there is a GPU."""

from __future__ import annotations

import importlib.util
import os

import torch

from hymo.errors import KernelUnavailable, did_you_mean

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None      # asked here: torch.compile cannot look into the search


def resolve(operation: str, impl: str, known: tuple[str, ...], device: torch.device | str, otherwise: str) -> str:
    """The implementation that `impl`, one of `known`, means on `device`: "auto" is "triton" on a CUDA device where the package is, else `otherwise`.

    Raises KernelUnavailable, with the reason, for an unknown name and when "triton" was asked for by name and cannot run there; Triton's interpreter
    (TRITON_INTERPRET=1) runs on a CPU.
    """
    if impl not in known:
        raise KernelUnavailable(f"impl must be one of {', '.join(known)}, but got {impl=}{did_you_mean(impl, known)}")
    kind = torch.device(device).type
    if impl == "auto":
        return "triton" if kind == "cuda" and TRITON_INSTALLED else otherwise
    if impl == "triton":
        if not TRITON_INSTALLED:
            raise KernelUnavailable(f"{operation}'s kernel needs the triton package, but it is not installed; install it, or use impl={otherwise!r}")
        if kind not in ("cuda", "meta") and os.environ.get("TRITON_INTERPRET") != "1":
            raise KernelUnavailable(f"{operation}'s Triton kernel needs a CUDA device, but got {str(device)!r}; use impl={otherwise!r}")
    return impl
