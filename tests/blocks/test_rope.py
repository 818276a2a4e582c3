import math

import pytest
import torch

from hymo import Context
from hymo.errors import RecipeError
from hymo.testing import PositionContract, make_layer


def angles(config: dict, positions: list[int], width: int, max_seq_len: int = 128) -> torch.Tensor:
    """Angle of each pair, read off the rotation of (1, 0)."""
    block = PositionContract.build(_suite(max_seq_len), config)
    x = torch.zeros(1, len(positions), 1, width)
    x[..., 0::2] = 1
    y = block(x, Context(torch.tensor([positions])))[0, :, 0]
    return torch.atan2(y[:, 1::2], y[:, 0::2])


def _suite(max_seq_len: int) -> PositionContract:
    suite = PositionContract()
    suite.model = {"max_seq_len": max_seq_len}
    return suite


class TestRope(PositionContract):
    configs = {"default": {"type": "rope"}, "short_base": {"type": "rope", "theta": 100.0}}


class TestRopeLinear(PositionContract):
    configs = {"x4": {"type": "rope_linear", "factor": 4.0}}


class TestRopeNtk(PositionContract):
    configs = {"x4": {"type": "rope_ntk", "factor": 4.0}}


class TestRopeYarn(PositionContract):
    configs = {"x4": {"type": "rope_yarn", "factor": 4.0}, "flat": {"type": "rope_yarn", "factor": 2.0, "attention_factor": 1.0}}


def test_pairs_are_interleaved_and_turn_by_the_formula():
    x = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]])
    block = PositionContract.build(_suite(128), {"type": "rope"})
    y = block(x, Context(torch.tensor([[3]])))[0, 0, 0].tolist()
    fast, slow = 3 * 1.0, 3 * 10_000 ** (-2 / 4)
    expected = [
        1 * math.cos(fast) - 2 * math.sin(fast),
        1 * math.sin(fast) + 2 * math.cos(fast),
        3 * math.cos(slow) - 4 * math.sin(slow),
        3 * math.sin(slow) + 4 * math.cos(slow),
    ]
    assert y == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("config", [{"type": "rope"}, {"type": "rope_yarn", "factor": 4.0, "attention_factor": 1.0}], ids=["rope", "yarn"])
def test_scores_depend_on_the_distance_alone_and_lengths_are_kept(config):
    block = PositionContract.build(_suite(128), config)
    q, k = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0))

    def at(x: torch.Tensor, position: int) -> torch.Tensor:
        return block(x, Context(torch.tensor([[position]])))

    near, far = (at(q, 7) * at(k, 3)).sum(), (at(q, 1007) * at(k, 1003)).sum()
    torch.testing.assert_close(near, far, atol=1e-5, rtol=0)
    torch.testing.assert_close(at(q, 999).norm(), q.norm())


def test_angles_stay_exact_at_a_million_tokens():
    expected = math.remainder(1_000_003 * 10_000 ** (-2 / 4), 2 * math.pi)
    assert angles({"type": "rope"}, [1_000_003], 4)[0, 1].item() == pytest.approx(expected, abs=1e-5)


def test_one_table_serves_every_layer_of_a_pass():
    ctx = Context.for_tokens((1, 5), "cpu")
    for _ in range(3):
        PositionContract.build(_suite(128), {"type": "rope"})(torch.randn(1, 5, 2, 8), ctx)
    assert len(ctx.cache) == 1


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="must be even"):
        PositionContract.build(_suite(128), {"type": "rope"})(torch.randn(1, 5, 2, 7), Context.for_tokens((1, 5), "cpu"))


def test_linear_divides_positions():
    torch.testing.assert_close(angles({"type": "rope_linear", "factor": 4.0}, [8], 16), angles({"type": "rope"}, [2], 16))


def test_ntk_keeps_the_fastest_pair_and_slows_the_last_by_the_factor():
    plain, scaled = (angles(config, [1], 16)[0] for config in ({"type": "rope"}, {"type": "rope_ntk", "factor": 4.0}))
    assert scaled[0] == plain[0]
    assert scaled[-1].item() == pytest.approx(plain[-1].item() / 4, rel=1e-4)
    ratios = plain / scaled
    torch.testing.assert_close(ratios[1:] / ratios[:-1], torch.full((7,), 4 ** (1 / 7)), atol=1e-4, rtol=0)


def test_ntk_leaves_a_single_pair_alone():
    torch.testing.assert_close(angles({"type": "rope_ntk", "factor": 4.0}, [1], 2), angles({"type": "rope"}, [1], 2))


def test_yarn_by_hand():
    """K = 4, theta = 100: frequencies 1 and 0.1; with 2π·10 tokens they turn 10 and 1 times in the trained context."""
    config = {"type": "rope_yarn", "factor": 4.0, "theta": 100.0, "beta_fast": 16.0, "beta_slow": 1.0}
    length = 63                                                    # the nearest whole number of tokens
    fast = (length / (2 * math.pi) - 1) / 15                       # gamma of the first pair
    slow = (length * 0.1 / (2 * math.pi) - 1) / 15                 # about 0.0002
    expected = [(1 - gamma) * theta / 4 + gamma * theta for gamma, theta in ((fast, 1.0), (slow, 0.1))]
    assert angles(config, [1], 4, max_seq_len=length)[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_yarn_scales_rotated_heads():
    block = PositionContract.build(_suite(128), {"type": "rope_yarn", "factor": 8.0})
    x = torch.randn(1, 6, 2, 8, generator=torch.Generator().manual_seed(0))
    y = block(x, Context.for_tokens((1, 6), "cpu"))
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1) * (0.1 * math.log(8) + 1))


def test_yarn_refuses_a_ramp_that_does_not_rise():
    suite = TestRopeYarn()
    config = suite.parsed({"type": "rope_yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 2.0})
    layer = make_layer("position", config, suite.settings())
    with pytest.raises(RecipeError, match="beta_slow must be below beta_fast, but got"):
        config.check(layer, layer.model)


def test_factor_one_is_rope():
    for name in ("rope_linear", "rope_ntk", "rope_yarn"):
        torch.testing.assert_close(angles({"type": name, "factor": 1.0}, [1, 100], 16), angles({"type": "rope"}, [1, 100], 16))
