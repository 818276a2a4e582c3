"""Rows in chunks, gradients computed chunk by chunk in the forward pass: no more than one chunk of logits exists at a time.

The loss is a sum, so its gradient is known up to the scalar that arrives in the backward pass: d(sum)/d(logit) = softmax - one_hot, times the
slope 1 - tanh^2 of the soft cap. The idea is Liger's (arXiv 2410.10989).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hymo.ops.precision import autocast_dtype, without_autocast

IGNORED = -100
CHUNK_NUMBERS = {"cpu": 2**23, "cuda": 2**28}       # logits alive at a time: as many as keep a GPU busy, fewer where caches are small
Rows = Callable[[Tensor, Tensor, float, bool], tuple[Tensor, Tensor | None]]


def rows(logits_CW: Tensor, targets_C: Tensor, softcap: float, want_grad: bool) -> tuple[Tensor, Tensor | None]:
    """Losses of some rows, in fp32 at least, and the gradient of their sum with respect to the raw logits, in the logits' dtype."""
    wide = torch.promote_types(logits_CW.dtype, torch.float32)
    capped = logits_CW.to(wide)
    tanh = None
    if softcap:
        tanh = torch.tanh(capped / softcap)
        capped = softcap * tanh
    counted_C1 = (targets_C != IGNORED)[:, None]
    index_C1 = torch.where(counted_C1, targets_C[:, None], 0)
    log_z_C1 = torch.logsumexp(capped, dim=-1, keepdim=True)
    losses_C = torch.where(counted_C1, log_z_C1 - capped.gather(-1, index_C1), 0).squeeze(-1)
    if not want_grad:
        return losses_C, None
    grad = torch.exp(capped - log_z_C1)
    grad.scatter_add_(-1, index_C1, torch.full_like(log_z_C1, -1))
    if tanh is not None:
        grad *= 1 - tanh * tanh
    return losses_C, torch.where(counted_C1, grad, 0).to(logits_CW.dtype)


def linear_cross_entropy(hidden_ND: Tensor, weight_WD: Tensor, targets_N: Tensor, softcap: float, rows: Rows = rows) -> tuple[Tensor, Tensor]:
    """See the package. `rows` does what the function of that name here does."""
    hidden_ND = hidden_ND.to(autocast_dtype(hidden_ND))     # outside the Function: the gradient then comes back in the caller's dtype
    loss, per_token_N = _LinearCrossEntropy.apply(hidden_ND, weight_WD, targets_N, softcap, rows)       # type: ignore[no-untyped-call]
    return loss, per_token_N


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_WD: Tensor, targets_N: Tensor, softcap: float, rows: Rows) -> tuple[Tensor, Tensor]:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        weight = weight_WD.to(hidden_ND.dtype)
        grad_hidden = torch.empty_like(hidden_ND) if wants_hidden else None
        grad_weight = torch.zeros_like(weight_WD, dtype=wide) if wants_weight else None
        per_token_N = torch.empty(hidden_ND.shape[0], dtype=wide, device=hidden_ND.device)
        with without_autocast(hidden_ND):
            for chunk in _chunks(hidden_ND.shape[0], weight.shape[0], hidden_ND.device.type):
                hidden = hidden_ND[chunk]
                per_token_N[chunk], grad = rows(hidden @ weight.mT, targets_N[chunk], softcap, wants_hidden or wants_weight)
                if grad is not None and grad_hidden is not None:
                    torch.mm(grad, weight, out=grad_hidden[chunk])
                if grad is not None and grad_weight is not None:
                    _add_product(grad_weight, grad.mT, hidden)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(per_token_N)
        return per_token_N.sum(), per_token_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return (
            None if grad_hidden is None else (grad_hidden * grad).to(grad_hidden.dtype),
            None if grad_weight is None else grad_weight * grad,
            None,
            None,
            None,
        )


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b; a GPU adds bf16 products to an fp32 total in one pass."""
    if total.is_cuda and total.dtype != a.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def _chunks(count: int, width: int, device: str) -> Iterator[slice]:
    """Runs of rows, a power of two long, of at most CHUNK_NUMBERS logits."""
    size = 1 << max(0, (CHUNK_NUMBERS[device] // width).bit_length() - 1)
    return (slice(begin, min(begin + size, count)) for begin in range(0, count, size))
