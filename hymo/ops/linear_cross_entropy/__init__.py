"""The output head and its loss in one operation, so that the logits of all tokens never exist at once."""

from typing import Literal, get_args

import torch
from torch import Tensor

from hymo.ops.choice import resolve
from hymo.ops.linear_cross_entropy import chunked, reference

IGNORED = chunked.IGNORED       # the target of a row that no loss counts
Impl = Literal["auto", "reference", "chunked", "triton"]
IMPLS = get_args(Impl)


def resolve_impl(impl: Impl, device: torch.device | str) -> str:
    """See hymo/ops/choice.py."""
    return resolve("linear_cross_entropy", impl, IMPLS, device, otherwise="chunked")


def linear_cross_entropy(
    hidden_ND: Tensor, weight_WD: Tensor, targets_N: Tensor, *, softcap: float = 0.0, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """L = sum_n logsumexp(z_n) - z_n[target_n], in nats, with z = softcap*tanh(W h / softcap), or W h when softcap is 0.

    hidden_ND (N, D); weight_WD (vocabulary, D); targets_N (N,) int64, where IGNORED (-100) leaves a row out. Returns (L, losses_N) in fp32 (float64
    for float64 inputs). L is differentiable once in hidden and weight; losses_N, each row's own loss, is for the record and carries no
    gradient. Products run in autocast's dtype, or hidden's; the softmax is in fp32 at least. Raises KernelUnavailable, see resolve_impl.
    """
    chosen = resolve_impl(impl, hidden_ND.device)
    if chosen == "reference":
        return reference.linear_cross_entropy(hidden_ND, weight_WD, targets_N, softcap)
    if chosen == "triton":
        from hymo.ops.linear_cross_entropy import triton

        return chunked.linear_cross_entropy(hidden_ND, weight_WD, targets_N, softcap, triton.rows)
    return _of_counted_rows(hidden_ND, weight_WD, targets_N, softcap)


def _of_counted_rows(hidden_ND: Tensor, weight_WD: Tensor, targets_N: Tensor, softcap: float) -> tuple[Tensor, Tensor]:
    """The chunked form over the rows that count: a recall task asks for few tokens of a row, and the head is most of a small model. On a CPU their
    number is known for nothing; a GPU would wait for it."""
    counted_N = targets_N != IGNORED
    if hidden_ND.is_cuda or counted_N.all():
        return chunked.linear_cross_entropy(hidden_ND, weight_WD, targets_N, softcap)
    total, losses_M = chunked.linear_cross_entropy(hidden_ND[counted_N], weight_WD, targets_N[counted_N], softcap)
    return total, losses_M.new_zeros(targets_N.shape).masked_scatter(counted_N, losses_M)
