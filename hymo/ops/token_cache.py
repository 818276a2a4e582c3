"""What attention layers keep of every token while decoding: numbers along the second axis that grow by a token at a time."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def append(old_BLX: Tensor, new_BTX: Tensor, slot: Tensor | None) -> Tensor:
    """The tokens so far and T new ones, in the type of the old.

    Without `slot` a new tensor (B, L+T, …), the old one as it was. With it, room was reserved: the one new token goes to place slot (1) of the old
    tensor, which is returned.
    """
    new_BTX = new_BTX.to(old_BLX.dtype)
    return torch.cat([old_BLX, new_BTX], dim=1) if slot is None else old_BLX.index_copy_(1, slot, new_BTX)


def with_room(cache_BLX: Tensor, tokens: int, value: Any = 0) -> Tensor:
    """(B, L + tokens, …): a copy with room at the end, filled with `value`."""
    return F.pad(cache_BLX, (*[0, 0] * (cache_BLX.ndim - 2), 0, tokens), value=value)
