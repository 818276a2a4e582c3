r"""Linear attention with decay and, optionally, an erase term.

    S_t = diag(e^{d_t}) S_{t-1};   S_t += k_t (beta_t (v_t - S_t^T k_t))^T   or, without beta,   S_t += k_t v_t^T;   o_t = S_t^T q_t

The decay comes first, the delta acts on the decayed state. A decay per head makes this Gated DeltaNet (arXiv 2412.06464) with beta and Mamba-2
(2405.21060) without; a decay per key channel makes it Kimi Delta Attention (2510.26692) and GLA (2312.06635).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hymo.ops.linear_attention.chunked import linear_attention_chunked
from hymo.ops.linear_attention.reference import linear_attention_reference

Impl = Literal["reference", "chunked"]
_FORMS = {"reference": linear_attention_reference, "chunked": linear_attention_chunked}


def linear_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor,
    beta_BTH: Tensor | None = None,
    *,
    initial_state_BHKV: Tensor | None = None,
    starts_BT: Tensor | None = None,
    impl: Impl = "chunked",
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, H, V) in v's dtype and the final state (B, H, K, V) in fp32 (float64 if the inputs are).

    log_decay   <= 0; (B, T, H) one decay a head, or (B, T, H, K) one a key channel
    beta_BTH    write strength in [0, 2]; None leaves the erase term out
    starts_BT   True where a document begins inside a row: the state is zeroed before that token
    """
    B, _, H, K = q_BTHK.shape
    wide = torch.promote_types(v_BTHV.dtype, torch.float32)
    if log_decay.ndim == 3:
        log_decay = log_decay[..., None].expand(q_BTHK.shape)
    state = v_BTHV.new_zeros(B, H, K, v_BTHV.shape[-1], dtype=wide) if initial_state_BHKV is None else initial_state_BHKV.to(wide)
    with torch.autocast(v_BTHV.device.type, enabled=False):
        beta = None if beta_BTH is None else beta_BTH.to(wide)
        o, state = _FORMS[impl](q_BTHK.to(wide), k_BTHK.to(wide), v_BTHV.to(wide), log_decay.to(wide), beta, state, starts_BT)
    return o.to(v_BTHV.dtype), state
