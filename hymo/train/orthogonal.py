"""Newton–Schulz orthogonalisation of stacked matrices, whole or spread by rows over the ranks of a group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)    # of Muon (Jordan et al. 2024): steepest at zero; singular values end in about [0.68, 1.13]
TINY = 1e-7                                 # added to a norm, so that a gradient of zeros stays zeros


def arithmetic(device: torch.device) -> torch.dtype:
    """Number format of the iteration: bf16 on a GPU, fp32 on a CPU, whose bf16 products are slow."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def newton_schulz(x_KMN: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """X ← aX + b(XXᵀ)X + c(XXᵀ)²X, `steps` times from X/‖X‖_F: towards U Vᵀ of X = U Σ Vᵀ, for every matrix of the stack at once.

    x_KMN (K, M, N), any M and N. The iteration runs in `dtype`, which its result comes back in.
    """
    return iterate(scaled(x_KMN, squares(x_KMN), dtype), steps)


def newton_schulz_rows(x_KmN: Tensor, rows: int, steps: int, dtype: torch.dtype, group: dist.ProcessGroup) -> Tensor:
    """`newton_schulz` of matrices of `rows` rows, of which rank r of `group` holds rows r·⌈rows/W⌉ … (FSDP2's sharding); returns the same rows.

    The work is shared out: one all-to-all brings each rank whole matrices, K/W of them, and another brings the rows home. Both travel in `dtype`.
    """
    world = dist.get_world_size(group)
    K, m, N = x_KmN.shape
    share, chunk = -(-K // world), -(-rows // world)
    norms = squares(x_KmN)
    dist.all_reduce(norms, group=group)
    sent = x_KmN.new_zeros(world * share, chunk, N, dtype=dtype)
    sent[:K, :m] = scaled(x_KmN, norms, dtype)
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    whole = got.view(world, share, chunk, N).transpose(0, 1).reshape(share, world * chunk, N)
    done = torch.zeros_like(whole)
    done[:, :rows] = iterate(whole[:, :rows], steps)
    back = done.view(share, world, chunk, N).transpose(0, 1).contiguous()
    dist.all_to_all_single(got, back, group=group)
    return got.view(world * share, chunk, N)[:K, :m]


def squares(x_KMN: Tensor) -> Tensor:
    """‖X‖²_F of each matrix, (K,)."""
    return x_KMN.square().sum((-2, -1))


def scaled(x_KMN: Tensor, squares_K: Tensor, dtype: torch.dtype) -> Tensor:
    """X/‖X‖_F, rounded to `dtype`."""
    return (x_KMN / (squares_K.sqrt() + TINY)[:, None, None]).to(dtype)


def iterate(x_KMN: Tensor, steps: int) -> Tensor:
    """The polynomial itself, on the shorter side."""
    a, b, c = COEFFICIENTS
    tall = x_KMN.shape[-2] > x_KMN.shape[-1]
    x = x_KMN.mT if tall else x_KMN
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x
