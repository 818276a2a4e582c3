"""The convolution as a sum of shifted inputs, in plain PyTorch, and the history it leaves, which every implementation shares."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def short_conv_reference(x_BTD: Tensor, weight_DW: Tensor, history_BWD: Tensor | None, starts_BT: Tensor | None, silu: bool) -> Tensor:
    """y_BTD of the package's short_conv."""
    width, length = weight_DW.shape[1], x_BTD.shape[1]
    back = width - 1
    padded = _after(history_BWD, x_BTD, back)
    weight_WD = weight_DW.to(torch.promote_types(x_BTD.dtype, torch.float32)).T
    y_BTD = x_BTD * weight_WD[back]
    number = None if starts_BT is None else _document_number(starts_BT, back)
    for j in range(1, width):
        tap = padded[:, back - j : back - j + length]
        if number is not None:
            tap = torch.where((number[:, back - j : back - j + length] == number[:, back:])[..., None], tap, 0)
        y_BTD = torch.addcmul(y_BTD, tap, weight_WD[back - j])
    return (F.silu(y_BTD) if silu else y_BTD).to(x_BTD.dtype)


def next_history(x_BTD: Tensor, history_BWD: Tensor | None, starts_BT: Tensor | None, back: int) -> Tensor:
    """The last `back` inputs, those before the last document zeroed."""
    begin = max(0, x_BTD.shape[1] - back)
    length = x_BTD.shape[1] - begin
    last = _after(history_BWD, x_BTD[:, begin:], back)[:, length:]
    if starts_BT is None:
        return last.clone()         # a view would keep more than itself alive
    number = _document_number(starts_BT[:, begin:], back)
    return torch.where((number[:, length:] == number[:, -1:])[..., None], last, 0)


def _after(history_BWD: Tensor | None, x_BTD: Tensor, back: int) -> Tensor:
    """The inputs behind the `back` that came before them."""
    return F.pad(x_BTD, (0, 0, back, 0)) if history_BWD is None else torch.cat([history_BWD, x_BTD], dim=1)


def _document_number(starts_BT: Tensor, back: int) -> Tensor:
    """Number of a token's document, counted within the pass, after `back` zeros for the history."""
    return F.pad(starts_BT.cumsum(dim=1), (back, 0))
