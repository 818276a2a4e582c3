import math

import pytest
import torch

from hymo.ops.rotary import frequencies, rotate, rotation_table
from hymo.testing import OpContract


def by_complex_numbers(x, positions, base=100.0):
    """z e^{iφ}, pair by pair."""
    width = x.shape[-1]
    theta = torch.tensor([base ** (-2 * k / width) for k in range(width // 2)], dtype=torch.float64)
    phase = positions[..., None, None].double() * theta
    z = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(phase), phase)).flatten(-2).to(x.dtype)


def ours(x, positions):
    return rotate(x, rotation_table(positions, frequencies(x.shape[-1], 100.0)))


class TestRotate(OpContract):
    implementations = {"torch": ours}
    reference = staticmethod(by_complex_numbers)
    cases = {
        f"{length}x{width}": lambda generator, length=length, width=width: {
            "x": torch.randn(2, length, 3, width, generator=generator, dtype=torch.float64),
            "positions": torch.randint(0, 5000, (2, length), generator=generator),
        }
        for length, width in ((1, 2), (7, 8), (33, 6))
    }


def test_frequencies_by_hand():
    assert frequencies(4, 10_000).tolist() == pytest.approx([1.0, 0.01], rel=1e-12)


def test_a_width_of_zero_has_no_pairs():
    assert rotate(torch.empty(1, 2, 3, 0), rotation_table(torch.tensor([[0, 1]]), frequencies(0, 10.0))).shape == (1, 2, 3, 0)


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="a rotated width must be even, for it is cut into pairs, but got width=3"):
        frequencies(3, 10.0)


def test_angles_keep_their_precision_far_out():
    cos, sin = rotation_table(torch.tensor([[10**7]]), torch.tensor([1 / 3], dtype=torch.float64))
    phase = math.remainder(10**7 / 3, 2 * math.pi)
    assert (cos.item(), sin.item()) == pytest.approx((math.cos(phase), math.sin(phase)), abs=1e-6)
