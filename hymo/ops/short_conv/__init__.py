"""Causal depthwise convolution over a few tokens, with documents, a carried history and, if wanted, SiLU on what it gives.

    c_t = Σ_j weight_{W−1−j} ⊙ x_{t−j},  j = 0 … W−1         channel by channel, the last weight on the present token (nn.Conv1d's order)
    y_t = c_t,  or  c_t ⊙ σ(c_t)
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from hymo.errors import OperandError
from hymo.ops.choice import resolve
from hymo.ops.operands import check_operands
from hymo.ops.short_conv import reference

Activation = Literal["silu"] | None
Impl = Literal["auto", "reference", "triton"]
IMPLS = get_args(Impl)


def resolve_impl(impl: Impl, device: torch.device | str) -> str:
    """See hymo/ops/choice.py."""
    return resolve("short_conv", impl, IMPLS, device, otherwise="reference")


def short_conv(
    x_BTD: Tensor,
    weight_DW: Tensor,
    *,
    history_BWD: Tensor | None = None,
    starts_BT: Tensor | None = None,
    activation: Activation = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """y_t = f(Σ_j weight_{W−1−j} ⊙ x_{t−j}), j = 0 … W−1, with f the identity or SiLU.

    history_BWD   the W−1 inputs before the first token, oldest first; zeros when None
    starts_BT     bool, True where a document starts: no tap reaches back over that token
    impl          "reference" | "triton" | "auto"; see resolve_impl

    Returns y_BTD in x's dtype, computed in fp32 (or wider), and the history of the tokens to come, in which inputs that no later token may see
    are zero already. Gradients flow to x, weight and history. Raises OperandError for shapes that do not fit and for an unknown activation,
    KernelUnavailable for a kernel that cannot run.
    """
    _check(x_BTD, weight_DW, history_BWD, starts_BT, activation)
    history = None if history_BWD is None else history_BWD.to(x_BTD.dtype)
    if resolve_impl(impl, x_BTD.device) == "triton":
        from hymo.ops.short_conv.triton import short_conv_triton as run
    else:
        run = reference.short_conv_reference
    y_BTD = run(x_BTD, weight_DW, history, starts_BT, activation == "silu")
    return y_BTD, reference.next_history(x_BTD, history, starts_BT, weight_DW.shape[1] - 1)


def _check(x_BTD: Tensor, weight_DW: Tensor, history_BWD: Tensor | None, starts_BT: Tensor | None, activation: Activation) -> None:
    if x_BTD.ndim != 3 or weight_DW.ndim != 2 or weight_DW.shape[1] == 0:
        raise OperandError(
            f"x must have the 3 axes (B, T, D) and weight the 2 axes (D, W), W > 0, but got {tuple(x_BTD.shape)=}, {tuple(weight_DW.shape)=}"
        )
    if activation not in (None, "silu"):
        raise OperandError(f"activation must be None or 'silu', but got {activation=}")
    (B, T, D), W = x_BTD.shape, weight_DW.shape[1]
    expected = {"weight": (weight_DW, (D, W)), "history": (history_BWD, (B, W - 1, D)), "starts": (starts_BT, (B, T))}
    check_operands(x_BTD, expected, "x and weight, whose axes are (B, T, D) and (D, W)", starts_BT)
