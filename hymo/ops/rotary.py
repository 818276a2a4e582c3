r"""Rotation of interleaved pairs by position (RoPE, arXiv 2104.09864).

    (x_2k, x_2k+1) -> (x_2k cos φ − x_2k+1 sin φ,  x_2k sin φ + x_2k+1 cos φ),   φ = position · θ_k,   θ_k = base^(−2k/K)
"""

from __future__ import annotations

import torch
from torch import Tensor


def frequencies(width: int, base: float, device: torch.device | str = "cpu") -> Tensor:
    """θ_k for the K/2 pairs of a head of even `width` K, radians per token, float64."""
    if width % 2:
        raise ValueError(f"a rotated width must be even, for it is cut into pairs, but got {width=}")
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def rotation_table(positions_BT: Tensor, theta_P: Tensor) -> Tensor:
    """(cos φ, sin φ) as one fp32 tensor (2, B, T, 1, P). Angles are taken in float64: in fp32 a position of 10^6 would be off by 0.03 radian."""
    phi_BTP = positions_BT[..., None].double() * theta_P
    return torch.stack([phi_BTP.cos(), phi_BTP.sin()]).float().unsqueeze(-2)


def rotate(x_BTHK: Tensor, table: Tensor) -> Tensor:
    """x rotated by the table of its positions; computed in fp32 (or wider), returned in x's dtype."""
    cos, sin = table
    pairs = torch.unflatten(x_BTHK.to(torch.promote_types(x_BTHK.dtype, torch.float32)), -1, (-1, 2))
    # Each pair and its mirror image: a compiler reads whole rows this way, where even and odd numbers apart would be two strided reads.
    turned: Tensor = pairs * cos[..., None] + pairs.flip(-1) * torch.stack([-sin, sin], dim=-1)
    return turned.flatten(-2).to(x_BTHK.dtype)
