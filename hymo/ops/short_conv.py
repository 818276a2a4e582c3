"""Causal depthwise convolution over a few tokens, with documents and a carried history."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def short_conv(
    x_BTD: Tensor, weight_DW: Tensor, *, history_BWD: Tensor | None = None, starts_BT: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """y_t = Σ_j weight_{W−1−j} ⊙ x_{t−j}, j = 0 … W−1: channel by channel, the last weight on the present token (nn.Conv1d's order).

    history_BWD   the W−1 inputs before the first token, oldest first; zeros when None
    starts_BT     bool, True where a document starts: no tap reaches back over that token

    Returns y_BTD in x's dtype, computed in fp32 (or wider), and the history of the tokens to come, in which inputs that no later token may see
    are zero already.
    """
    width, length = weight_DW.shape[1], x_BTD.shape[1]
    back = width - 1
    padded = F.pad(x_BTD, (0, 0, back, 0)) if history_BWD is None else torch.cat([history_BWD.to(x_BTD.dtype), x_BTD], dim=1)
    weight_WD = weight_DW.to(torch.promote_types(x_BTD.dtype, torch.float32)).T
    y_BTD = x_BTD * weight_WD[back]
    number = None if starts_BT is None else F.pad(starts_BT.cumsum(dim=1), (back, 0))       # of a token's document, counted within the pass
    for j in range(1, width):
        tap = padded[:, back - j : back - j + length]
        if number is not None:
            tap = torch.where((number[:, back - j : back - j + length] == number[:, back:])[..., None], tap, 0)
        y_BTD = torch.addcmul(y_BTD, tap, weight_WD[back - j])
    if number is None:
        history = padded[:, length:].clone()        # a view would keep the whole pass alive
    else:
        history = torch.where((number[:, length:] == number[:, -1:])[..., None], padded[:, length:], 0)
    return y_BTD.to(x_BTD.dtype), history
