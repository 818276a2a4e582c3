"""The recurrence as written, token by token: the definition that every other form is held to."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_attention_reference(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_decay_BTHK: Tensor, beta_BTH: Tensor | None, state_BHKV: Tensor, starts_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One step per token, in the dtype of its inputs (float64 for an oracle)."""
    outputs = []
    state = state_BHKV
    for t in range(q_BTHK.shape[1]):
        if starts_BT is not None:
            state = torch.where(starts_BT[:, t, None, None, None], 0.0, state)
        k, v = k_BTHK[:, t], v_BTHV[:, t]
        state = log_decay_BTHK[:, t].exp()[..., None] * state
        if beta_BTH is not None:
            v = beta_BTH[:, t, :, None] * (v - torch.einsum("bhk,bhkv->bhv", k, state))
        state = state + k[..., None] * v[..., None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q_BTHK[:, t], state))
    return torch.stack(outputs, dim=1), state
