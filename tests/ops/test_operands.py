import pytest
import torch

from hymo.errors import OperandError
from hymo.ops.operands import check_operands

X = torch.zeros(2, 3)


def test_what_fits_passes():
    check_operands(X, {"y": (torch.ones(2), (2,)), "left out": (None, (9, 9))}, "x", torch.zeros(2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("operand", "message"),
    [
        (torch.ones(3), r"y must have shape \(2,\) to fit x, but got \(3,\)"),
        (torch.ones(2, 1), r"y must have shape \(2,\) to fit x, but got \(2, 1\)"),
        (torch.ones(2, device="meta"), "y must be on the device of the others, cpu, but got meta; move it there"),
    ],
)
def test_what_does_not_fit_is_refused(operand, message):
    with pytest.raises(OperandError, match=message):
        check_operands(X, {"y": (operand, (2,))}, "x")


def test_starts_are_flags():
    with pytest.raises(OperandError, match=r"starts must be bool, one flag a token, but got torch\.int64; compare document ids"):
        check_operands(X, {}, "x", torch.zeros(2, dtype=torch.int64))
