"""Losses and logit gradients of some rows in one Triton kernel, which turns the logits into their gradients in place.

One program per row, two passes over it: the first finds log sum exp, the second, mostly from cache, overwrites each logit with its gradient. Nothing
of fp32 width is ever written. The kernel is bound by exponentials: a low cap bounds every logit, and spares the running maximum its own.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# A kernel's arguments are pointers and constants, for which Python has no types.

import torch
import triton
import triton.language as tl
from torch import Tensor

IGNORED = tl.constexpr(-100)
BLOCK = 4096
LOW_CAP = 30.0      # exp(-2 * 30) is far from the smallest fp32: sums of exp(x - cap) keep their digits without a running maximum


@triton.jit
def _tanh(x):
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def _rows_kernel(
    logits_ptr, targets_ptr, losses_ptr, stride, width, softcap, CAP: tl.constexpr, LOW: tl.constexpr, GRAD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * stride
    target = tl.load(targets_ptr + row)
    counted = target != IGNORED
    # A target outside the vocabulary makes its loss NaN; it must not read another row's logit.
    picked = tl.load(logits_ptr + target, mask=(target >= 0) & (target < width), other=float("nan")).to(tl.float32)
    if CAP:
        picked = softcap * _tanh(picked / softcap)
    lanes = tl.arange(0, BLOCK)
    high = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, width, BLOCK):
        at = begin + lanes
        x = tl.load(logits_ptr + at, mask=at < width, other=-float("inf")).to(tl.float32)
        if CAP:
            x = tl.where(at < width, softcap * _tanh(x / softcap), -float("inf"))
        if LOW:
            total += tl.exp(x - softcap)
        else:
            higher = tl.maximum(high, x)
            # A lane that has seen nothing yet has -inf for both: its sum stays 0.
            safe = tl.where(higher == -float("inf"), 0.0, higher)
            total = total * tl.exp(high - safe) + tl.exp(x - safe)
            high = higher
    if LOW:
        log_z = softcap + tl.log(tl.sum(total, 0))
    else:
        top = tl.max(high, 0)
        log_z = top + tl.log(tl.sum(total * tl.exp(high - top), 0))
    tl.store(losses_ptr + row, tl.where(counted, log_z - picked, 0.0))
    if GRAD:
        for begin in range(0, width, BLOCK):
            at = begin + lanes
            x = tl.load(logits_ptr + at, mask=at < width, other=0.0).to(tl.float32)
            slope = 1.0
            if CAP:
                t = _tanh(x / softcap)
                x = softcap * t
                slope = 1 - t * t
            grad = (tl.exp(x - log_z) - tl.where(at == target, 1.0, 0.0)) * slope
            grad = tl.where(counted, grad, 0.0)
            tl.store(logits_ptr + at, grad.to(logits_ptr.dtype.element_ty), mask=at < width)


def rows(logits_CW: Tensor, targets_C: Tensor, softcap: float, want_grad: bool) -> tuple[Tensor, Tensor | None]:
    """See chunked.rows. The gradient takes the logits' place."""
    logits_CW, targets_C = logits_CW.contiguous(), targets_C.contiguous()
    count, width = logits_CW.shape
    losses_C = torch.empty(count, dtype=torch.float32, device=logits_CW.device)
    _rows_kernel[(count,)](
        logits_CW, targets_C, losses_C, logits_CW.stride(0), width, softcap,
        CAP=softcap != 0, LOW=0 < softcap <= LOW_CAP, GRAD=want_grad, BLOCK=min(BLOCK, triton.next_power_of_2(width)), num_warps=8,
    )
    return losses_C, logits_CW if want_grad else None
