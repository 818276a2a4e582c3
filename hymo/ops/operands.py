"""Whether the operands of an operation fit together: kernels read by shapes that they are told, and would read past the end of what does not fit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hymo.errors import OperandError


def check_operands(leader: Tensor, expected: Mapping[str, tuple[Tensor | None, tuple[int, ...]]], fits: str, starts: Tensor | None = None) -> None:
    """Raise OperandError unless each operand that there is has the shape beside it (`fits` says why) and the leader's device; starts must be bool."""
    for name, (operand, shape) in expected.items():
        if operand is None:
            continue
        if tuple(operand.shape) != shape:
            raise OperandError(f"{name} must have shape {shape} to fit {fits}, but got {tuple(operand.shape)}")
        if operand.device != leader.device:
            raise OperandError(f"{name} must be on the device of the others, {leader.device}, but got {operand.device}; move it there")
    if starts is not None and starts.dtype != torch.bool:
        raise OperandError(f"starts must be bool, one flag a token, but got {starts.dtype}; compare document ids to make it")
