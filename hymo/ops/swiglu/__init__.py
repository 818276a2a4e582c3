"""The gated activation of SwiGLU networks, in one pass over memory."""

from typing import Literal, get_args

import torch
from torch import Tensor

from hymo.errors import OperandError
from hymo.ops.choice import resolve
from hymo.ops.swiglu import reference

Impl = Literal["auto", "reference", "triton"]
IMPLS = get_args(Impl)


def resolve_impl(impl: Impl, device: torch.device | str) -> str:
    """See hymo/ops/choice.py."""
    return resolve("swiglu", impl, IMPLS, device, otherwise="reference")


def swiglu(gate_up: Tensor, *, impl: Impl = "auto") -> Tensor:
    """y = SiLU(gate) ⊙ up, with `gate_up` (…, 2F) holding gate in its first half and up in its second  (arXiv 2002.05202); (…, F), in its dtype.

    A compiler writes the gradient of two halves as a choice between them, which reads everything twice; the kernel reads and writes each number once.
    It computes in fp32: float64 takes the reference. Raises OperandError for a last axis that has no halves, KernelUnavailable for a kernel that
    cannot run.
    """
    if gate_up.ndim == 0 or gate_up.shape[-1] % 2 or not gate_up.is_floating_point():
        raise OperandError(f"gate_up must be of a floating-point type, its last axis even, but got {tuple(gate_up.shape)} of {gate_up.dtype}")
    if resolve_impl(impl, gate_up.device) == "reference" or gate_up.dtype == torch.float64:
        return reference.swiglu(gate_up)
    from hymo.ops.swiglu import triton

    y: Tensor = triton.swiglu(gate_up)
    return y
