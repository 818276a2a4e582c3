"""Who sees whom in rows of packed documents, as a block mask for FlexAttention, made without a T × T mask.

Documents lie one after another, so their numbers, counted along the row, never fall. Of a block of queries and an earlier block of keys, the first
and the last number of each tell all: no query sees a key if the last key's document is before the first query's, and every query sees every key if
the first key's document is the last query's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128     # FlexAttention's own


def document_mask(documents_BT: Tensor, window: int | None = None) -> BlockMask:
    """Query t of row b sees key s when s <= t, document[b, s] = document[b, t] and, with a window, t − s < window.

    documents_BT: equal neighbours are one document. Blocks in which every pair is visible are told apart from those that need looking at, and those
    in which none is are left out. The host waits for nothing.
    """
    from torch.nn.attention.flex_attention import BlockMask  # late, as in hymo/ops/attention.py

    length = documents_BT.shape[1]
    number_BT = F.pad((documents_BT[:, 1:] != documents_BT[:, :-1]).cumsum(dim=1), (1, 0))
    number_BNC = torch.unflatten(torch.cat([number_BT, number_BT[:, -1:].expand(-1, -length % BLOCK)], dim=1), 1, (-1, BLOCK))
    first_BN, last_BN = number_BNC[..., 0], number_BNC[..., -1]
    ahead_NN = torch.arange(first_BN.shape[1], device=documents_BT.device)
    ahead_NN = ahead_NN[:, None] - ahead_NN             # blocks that the queries' block lies after the keys'
    some_BNN = (last_BN[:, None, :] >= first_BN[:, :, None]) & (ahead_NN >= 0)
    all_BNN = (first_BN[:, None, :] == last_BN[:, :, None]) & (ahead_NN > 0)
    if window is not None:
        some_BNN &= ahead_NN * BLOCK - (BLOCK - 1) < window
        all_BNN &= ahead_NN * BLOCK + (BLOCK - 1) < window

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (key <= query) & (number_BT[row, query] == number_BT[row, key])
        return seen if window is None else seen & (query - key < window)

    return BlockMask.from_kv_blocks(
        *_listed(some_BNN & ~all_BNN), *_listed(all_BNN), BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=(length, length)
    )


def _listed(blocks_BNN: Tensor) -> tuple[Tensor, Tensor]:
    """For each block of queries the number of its blocks of keys, and those in order before the others; (B, 1, N) and (B, 1, N, N) int32."""
    order_BNN = blocks_BNN.int().argsort(dim=-1, descending=True, stable=True)
    return blocks_BNN.sum(dim=-1, dtype=torch.int32)[:, None], order_BNN.int()[:, None]
