"""Causal attention with documents: the one place that decides how it is computed.

`visibility` says once per pass who sees whom, in whatever form `attention` wants; blocks only carry it from one to the other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Visibility = Tensor | None


def visibility(
    queries: int, keys: int, documents_BT: Tensor | None, key_documents_BL: Tensor | None, device: torch.device | str, window: int | None = None
) -> Visibility:
    """Which of L keys each of the last T queries sees: those not after it, in its own document, the last `window` of them if given. A bool
    (B or 1, 1, T, L); None stands for "plainly causal", T = L or T = 1, which needs no mask."""
    narrow = window is not None and window < keys
    if documents_BT is None or key_documents_BL is None:
        if queries in (1, keys) and not narrow:
            return None
        return causal(queries, keys, device, window)[None, None]
    same_BTL = documents_BT[:, :, None] == key_documents_BL[:, None, :]
    return (same_BTL & causal(queries, keys, device, window)).unsqueeze(1)


def causal(queries: int, keys: int, device: torch.device | str, window: int | None = None) -> Tensor:
    """True where a key is not after the query nor `window` tokens before it, the last of both being the same token; bool (T, L)."""
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return seen if window is None else seen.triu(keys - queries - window + 1)


def attention(q_BHTK: Tensor, k_BGLK: Tensor, v_BGLV: Tensor, visible: Visibility, *, scale: float) -> Tensor:
    """o = softmax(scale · q kᵀ) v over the visible keys (arXiv 1706.03762); (B, H, T, V).

    Query head i reads key/value group i // (H/G)  (arXiv 2305.13245).
    """
    causal_square = visible is None and q_BHTK.shape[-2] > 1
    return F.scaled_dot_product_attention(q_BHTK, k_BGLK, v_BGLV, attn_mask=visible, is_causal=causal_square, scale=scale, enable_gqa=True)
