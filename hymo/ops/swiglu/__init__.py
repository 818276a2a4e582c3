"""The gated activation of SwiGLU networks, in one pass over memory."""

from typing import Literal

import torch
from torch import Tensor

from hymo.ops.choice import resolve
from hymo.ops.swiglu import reference

Impl = Literal["auto", "reference", "triton"]


def resolve_impl(impl: Impl, device: torch.device | str) -> str:
    """See hymo/ops/choice.py."""
    return resolve("swiglu", impl, device, otherwise="reference")


def swiglu(gate_up: Tensor, *, impl: Impl = "auto") -> Tensor:
    """y = SiLU(gate) ⊙ up, with `gate_up` (…, 2F) holding gate in its first half and up in its second  (arXiv 2002.05202); (…, F), in its dtype.

    A compiler writes the gradient of two halves as a choice between them, which reads everything twice; the kernel reads and writes each number once.
    It computes in fp32: float64 takes the reference.
    """
    if resolve_impl(impl, gate_up.device) == "reference" or gate_up.dtype == torch.float64:
        return reference.swiglu(gate_up)
    from hymo.ops.swiglu import triton

    y: Tensor = triton.swiglu(gate_up)
    return y
