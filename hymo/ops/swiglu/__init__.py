"""The gated activation of SwiGLU networks, in one pass over memory."""

import importlib.util
import os
from typing import Literal

import torch
from torch import Tensor

from hymo.errors import KernelUnavailable
from hymo.ops.swiglu import reference

Impl = Literal["auto", "reference", "triton"]
TRITON_INSTALLED = importlib.util.find_spec("triton") is not None      # asked here: torch.compile cannot look into the search


def resolve_impl(impl: Impl, device: torch.device | str) -> str:
    """The implementation that `impl` means on `device`: auto is `triton` on a CUDA device where the package is, else `reference`.

    Raises KernelUnavailable when triton was asked for by name elsewhere (Triton's interpreter apart).
    """
    kind = torch.device(device).type
    if impl == "auto":
        return "triton" if kind == "cuda" and TRITON_INSTALLED else "reference"
    if impl == "triton" and kind != "cuda" and not os.environ.get("TRITON_INTERPRET"):
        raise KernelUnavailable(f"swiglu's Triton kernel needs a CUDA device, but got {kind!r}; use impl='reference'")
    return impl


def swiglu(gate_up: Tensor, *, impl: Impl = "auto") -> Tensor:
    """y = SiLU(gate) ⊙ up, with `gate_up` (…, 2F) holding gate in its first half and up in its second  (arXiv 2002.05202); (…, F), in its dtype.

    A compiler writes the gradient of two halves as a choice between them, which reads everything twice; the kernel reads and writes each number once.
    """
    if resolve_impl(impl, gate_up.device) == "reference":
        return reference.swiglu(gate_up)
    from hymo.ops.swiglu import triton

    y: Tensor = triton.swiglu(gate_up)
    return y
