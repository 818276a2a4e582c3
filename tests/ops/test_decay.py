"""The decay's parameters start where Mamba-2's do."""

import math

import pytest
import torch

from hymo.ops.decay import init_dt_bias, init_rate, timestep


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_time_step_is_the_softplus_in_the_bias_precision():
    x, bias = torch.tensor([0.5], dtype=torch.bfloat16), torch.tensor([-1.0])
    assert timestep(x, bias).dtype == torch.float32
    assert timestep(x, bias).item() == pytest.approx(math.log1p(math.exp(-0.5)), rel=1e-6)


def test_initial_time_steps_are_log_uniform():
    bias = torch.empty(20_000)
    init_dt_bias(bias, seeded())
    dt = torch.log10(torch.nn.functional.softplus(bias.double()))
    assert -3.001 <= dt.min() <= dt.max() <= -0.999
    quartiles = torch.quantile(dt, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(quartiles, torch.tensor([-2.5, -2.0, -1.5], dtype=torch.float64), atol=0.03, rtol=0)


@pytest.mark.parametrize(("low", "high"), [(0.0, 16.0), (1.0, 16.0)])
def test_initial_rates_are_uniform_and_their_logarithm_finite(low, high):
    A_log = torch.empty(20_000)
    init_rate(A_log, low, high, seeded())
    assert torch.isfinite(A_log).all()
    assert low <= A_log.exp().min() <= A_log.exp().max() <= high * 1.0001
    assert A_log.exp().mean().item() == pytest.approx((low + high) / 2, rel=0.02)
