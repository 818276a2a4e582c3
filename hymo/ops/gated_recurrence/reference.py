"""The recurrence as written: one token after another. Slow, obvious, differentiable, in any floating dtype; what the others are compared with."""

import torch
from torch import Tensor

from hymo.ops.gated_recurrence.interface import compute_dtype


def gated_recurrence_reference(
    v_BTHD: Tensor, b_BTHS: Tensor, c_BTHS: Tensor, g_BTH: Tensor, A_HS: Tensor, initial_state_BHSD: Tensor | None, starts_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """H_t = exp(g_t·A) ⊙ H_{t−1} + b_t ⊗ v_t,  o_t = c_tᵀ H_t; float32 inside (float64 when the inputs are)."""
    dtype = compute_dtype(v_BTHD)
    v, b, c, g, A = (x.to(dtype) for x in (v_BTHD, b_BTHS, c_BTHS, g_BTH, A_HS))
    B, T, H, D = v.shape
    state = v.new_zeros(B, H, A.shape[1], D) if initial_state_BHSD is None else initial_state_BHSD.to(dtype)
    outputs = []
    for t in range(T):
        if starts_BT is not None:
            state = torch.where(starts_BT[:, t, None, None, None], 0.0, state)
        decay_BHS = torch.exp(g[:, t, :, None] * A)
        state = decay_BHS[..., None] * state + b[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhs,bhsd->bhd", c[:, t], state))
    return torch.stack(outputs, dim=1).to(v_BTHD.dtype), state
