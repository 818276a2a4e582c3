"""The output head and its loss in one operation, so that the logits of all tokens never exist at once."""

from typing import Literal

from torch import Tensor

from hymo.ops.linear_cross_entropy import chunked, reference

IGNORED = chunked.IGNORED     # the target of a row that no loss counts
Impl = Literal["auto", "reference", "chunked"]


def linear_cross_entropy(
    hidden_ND: Tensor, weight_WD: Tensor, targets_N: Tensor, *, softcap: float = 0.0, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """L = sum_n logsumexp(z_n) - z_n[target_n], in nats, with z = softcap*tanh(W h / softcap), or W h when softcap is 0.

    hidden_ND (N, D); weight_WD (vocabulary, D); targets_N (N,) int64, where IGNORED (-100) leaves a row out. Returns (L, losses_N) in fp32 (float64
    for float64 inputs). L is differentiable once in hidden and weight; losses_N, each row's own loss, is for the record and carries no
    gradient. Products run in autocast's dtype, or hidden's; the softmax is in fp32 at least. `auto` is `chunked`.
    """
    if impl == "reference":
        return reference.linear_cross_entropy(hidden_ND, weight_WD, targets_N, softcap)
    return chunked.linear_cross_entropy(hidden_ND, weight_WD, targets_N, softcap)
