"""What every implementation accepts: the shapes, and the precision they compute in."""

import torch
from torch import Tensor

from hymo.errors import OperandError
from hymo.ops import operands


def compute_dtype(x: Tensor) -> torch.dtype:
    """Precision of the state: float32, or float64 when the operands are."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def check_operands(
    v_BTHD: Tensor, b_BTHS: Tensor, c_BTHS: Tensor, g_BTH: Tensor, A_HS: Tensor, initial_state_BHSD: Tensor | None, starts_BT: Tensor | None
) -> None:
    """Raise OperandError unless every operand has the shape its name says, on one device."""
    if v_BTHD.ndim != 4 or A_HS.ndim != 2:
        raise OperandError(f"v must have the 4 axes (B, T, H, D) and A the 2 axes (H, S), but got {tuple(v_BTHD.shape)=}, {tuple(A_HS.shape)=}")
    B, T, H, D = v_BTHD.shape
    S = A_HS.shape[1]
    if T == 0:
        raise OperandError("the sequence must hold at least one token, but got T=0; leave the call out for an empty sequence")
    expected: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "b": (b_BTHS, (B, T, H, S)),
        "c": (c_BTHS, (B, T, H, S)),
        "g": (g_BTH, (B, T, H)),
        "A": (A_HS, (H, S)),
        "initial_state": (initial_state_BHSD, (B, H, S, D)),
        "starts": (starts_BT, (B, T)),
    }
    operands.check_operands(v_BTHD, expected, "v and A, whose axes are (B, T, H, D) and (H, S)", starts_BT)
