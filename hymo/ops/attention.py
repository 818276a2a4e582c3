"""Causal attention with documents: the one place that decides how it is computed.

`visibility` says once per pass who sees whom, in whatever form `attention` wants; blocks only carry it from one to the other.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from hymo.ops.document_mask import document_mask

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Visibility: TypeAlias = "Tensor | BlockMask | None"
LONG = 1024     # tokens from which a row's documents are worth a block mask: in shorter ones a full mask costs little, and no kernel is compiled


def visibility(
    queries: int, keys: int, documents_BT: Tensor | None, key_documents_BL: Tensor | None, device: torch.device | str, window: int | None = None
) -> Visibility:
    """Which of L keys each of the last T queries sees: those not after it, in its own document, the last `window` of them if given.

    None stands for "plainly causal", T = L or T = 1, which needs no mask. Long rows of documents on a GPU get a block mask, which leaves out what no
    query of a block sees; everything else a bool (B or 1, 1, T, L).
    """
    narrow = window is not None and window < keys
    if documents_BT is None or key_documents_BL is None:
        if queries in (1, keys) and not narrow:
            return None
        return causal(queries, keys, device, window)[None, None]
    if documents_BT.is_cuda and queries == keys >= LONG:
        return document_mask(documents_BT, window)
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
    if visible is not None and not isinstance(visible, Tensor):
        o_BHTV: Tensor = _flex_attention()(q_BHTK, k_BGLK, v_BGLV, block_mask=visible, scale=scale, enable_gqa=True)
        return o_BHTV
    causal_square = visible is None and q_BHTK.shape[-2] > 1
    return F.scaled_dot_product_attention(q_BHTK, k_BGLK, v_BGLV, attn_mask=visible, is_causal=causal_square, scale=scale, enable_gqa=True)


def _flex_attention() -> Any:
    """FlexAttention as one kernel: uncompiled it would write out the scores. Inside a compiled layer it becomes part of that layer's graph."""
    from torch.nn.attention.flex_attention import flex_attention  # 0.6 s, which `hymo count-params` need not wait for

    return flex_attention if torch.compiler.is_compiling() else _compiled(flex_attention)


@cache
def _compiled(function: Any) -> Any:
    return torch.compile(function)
