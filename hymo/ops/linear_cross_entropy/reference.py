"""All logits at once, in the widest type: the plainest form."""

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_cross_entropy(hidden_ND: Tensor, weight_WD: Tensor, targets_N: Tensor, softcap: float) -> tuple[Tensor, Tensor]:
    """See the package."""
    dtype = torch.promote_types(hidden_ND.dtype, torch.float32)
    logits_NW = hidden_ND.to(dtype) @ weight_WD.to(dtype).mT
    if softcap:
        logits_NW = softcap * torch.tanh(logits_NW / softcap)
    per_token_N = F.cross_entropy(logits_NW, targets_N, ignore_index=-100, reduction="none")
    return per_token_N.sum(), per_token_N.detach()
