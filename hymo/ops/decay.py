"""The decay of published recurrences, d = −exp(A_log) softplus(x + dt_bias) <= 0 (Mamba-2, arXiv 2405.21060), and how its two parameters start."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 0.1, 1e-4


def timestep(x: Tensor, dt_bias: Tensor) -> Tensor:
    """softplus(x + dt_bias) > 0, in dt_bias' precision."""
    return F.softplus(x.to(dt_bias.dtype) + dt_bias)


def init_rate(A_log: Tensor, low: float, high: float, generator: torch.Generator) -> None:
    """exp(A_log) uniform over (low, high); draws too near 0 are held at 1e-4, so that the logarithm is finite."""
    A_log.uniform_(low, high, generator=generator).clamp_(min=1e-4).log_()


def init_dt_bias(dt_bias: Tensor, generator: torch.Generator) -> None:
    """softplus(dt_bias) log-uniform over (1e-3, 0.1), at least 1e-4; softplus⁻¹(y) = y + log(1 − e^−y)."""
    dt_bias.uniform_(math.log(DT_MIN), math.log(DT_MAX), generator=generator).exp_().clamp_(min=DT_FLOOR)
    dt_bias.add_(torch.log(-torch.expm1(-dt_bias)))
