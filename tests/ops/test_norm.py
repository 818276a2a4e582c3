"""RMSNorm against its formula, in float64 and under autocast."""

import torch

from hymo.ops.norm import gated_rms_norm, rms_norm


def test_formula():
    x, weight = torch.tensor([3.0, 4.0], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    # mean square 12.5
    torch.testing.assert_close(rms_norm(x, weight, 0.0), torch.tensor([3.0, 8.0], dtype=torch.float64) / 12.5**0.5)
    torch.testing.assert_close(rms_norm(x * 0, weight, 1e-6), torch.zeros(2, dtype=torch.float64))


def test_gate_multiplies_what_is_normed():
    x, gate, weight = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])
    silu_of_one = 1 / (1 + torch.e**-1)
    torch.testing.assert_close(gated_rms_norm(x, gate, weight, 0.0), torch.tensor([0.0, 8.0 / 12.5**0.5 * silu_of_one]))
    torch.testing.assert_close(gated_rms_norm(x, gate, weight, 0.0, torch.sigmoid)[0], torch.tensor(3.0 / 12.5**0.5 / 2))


def test_statistics_are_fp32_whatever_the_input():
    """A sum of squares of 4096 bf16 numbers would stall at 256 in bf16 arithmetic."""
    x = torch.ones(4096, dtype=torch.bfloat16)
    y = rms_norm(x, torch.ones(4096), 1e-6)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, x)
