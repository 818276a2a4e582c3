r"""Linear attention with decay and, optionally, an erase term.

    S_t = diag(e^{d_t}) S_{t-1};   S_t += k_t (beta_t (v_t - S_t^T k_t))^T   or, without beta,   S_t += k_t v_t^T;   o_t = S_t^T q_t

The decay comes first, the delta acts on the decayed state. A decay per head makes this Gated DeltaNet (arXiv 2412.06464) with beta and Mamba-2
(2405.21060) without; a decay per key channel makes it Kimi Delta Attention (2510.26692) and GLA (2312.06635).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hymo.errors import KernelUnavailable
from hymo.ops.linear_attention import fla
from hymo.ops.linear_attention.chunked import linear_attention_chunked
from hymo.ops.linear_attention.reference import linear_attention_reference
from hymo.ops.precision import without_autocast

Impl = Literal["auto", "reference", "chunked", "fla"]


def resolve_impl(impl: Impl, device: torch.device | str) -> str:
    """The implementation that `impl` means on `device`: auto is flash-linear-attention where it can run, chunked PyTorch elsewhere.

    Raises KernelUnavailable with the reason when fla was asked for by name and cannot run there.
    """
    reason = fla.unavailable(device)
    if impl == "fla" and reason:
        raise KernelUnavailable(reason)
    if impl == "auto":
        return "chunked" if reason else "fla"
    return impl


def linear_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor,
    beta_BTH: Tensor | None = None,
    *,
    initial_state_BHKV: Tensor | None = None,
    starts_BT: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, H, V) in v's dtype and the final state (B, H, K, V) in fp32 (float64 if the inputs are).

    log_decay   <= 0; (B, T, H) one decay a head, or (B, T, H, K) one a key channel
    beta_BTH    write strength in [0, 2]; None leaves the erase term out
    starts_BT   True where a document begins inside a row: the state is zeroed before that token
    impl        see resolve_impl
    """
    B, _, H, K = q_BTHK.shape
    wide = torch.promote_types(v_BTHV.dtype, torch.float32)
    state = v_BTHV.new_zeros(B, H, K, v_BTHV.shape[-1], dtype=wide) if initial_state_BHKV is None else initial_state_BHKV.to(wide)
    beta = None if beta_BTH is None else beta_BTH.to(wide)
    with without_autocast(v_BTHV):
        chosen = resolve_impl(impl, v_BTHV.device)
        if chosen == "fla":
            return fla.linear_attention_fla(q_BTHK, k_BTHK, v_BTHV, log_decay, beta, state, starts_BT)
        form = linear_attention_chunked if chosen == "chunked" else linear_attention_reference
        decay = log_decay[..., None].expand(q_BTHK.shape) if log_decay.ndim == 3 else log_decay
        o, state = form(q_BTHK.to(wide), k_BTHK.to(wide), v_BTHV.to(wide), decay.to(wide), beta, state, starts_BT)
    return o.to(v_BTHV.dtype), state
