"""RMSNorm (arXiv 1910.07467), plain and gated: statistics in fp32 (or wider) whatever the autocast, results in the input's dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight ⊙ x / √(mean x² + eps), the mean over the last axis."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), weight.shape, weight.to(wide), eps).to(x.dtype)


def gated_rms_norm(x_BTHV: Tensor, gate_BTHV: Tensor, weight_V: Tensor, eps: float, activation: Callable[[Tensor], Tensor] = F.silu) -> Tensor:
    """activation(gate) ⊙ rms_norm(x): the last step of most published recurrences."""
    wide = torch.promote_types(x_BTHV.dtype, torch.float32)
    return (rms_norm(x_BTHV.to(wide), weight_V, eps) * activation(gate_BTHV.to(wide))).to(x_BTHV.dtype)
