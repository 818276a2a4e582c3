import math

import pytest
import torch

from hymo import Context
from hymo.errors import RecipeError
from hymo.init import initialise
from hymo.testing import MixerContract, make_layer

TINY = {"type": "gdn", "d_inner": 24, "head_dim": 8, "d_state": 6, "impl": "reference"}


class TestGdn(MixerContract):
    configs = {
        "reference": TINY,
        "chunked": {**TINY, "impl": "chunked"},
        "decay_from_g": {**TINY, "decay_gate": "g"},
        "timescale": {**TINY, "decay_init": "timescale"},
        "rope_on_bc": {**TINY, "rope_on": "bc"},
        "rope_on_vbc": {**TINY, "rope_on": "vbc"},
        "nope": {**TINY, "rope": "none"},
        "skip_only": {**TINY, "residual": "skip_only"},
        "no_conv": {**TINY, "d_conv": 1},
    }

    def test_flops_against_torch(self, config):
        super().test_flops_against_torch({**config, "impl": "reference"})

    def elementwise_flops(self, block, context):
        """All but the loop's one matrix product, the read-out c.H."""
        c = block.config
        return block.mixing_flops(context) - 2 * c.d_inner * c.d_state


class FullGdn(MixerContract):
    model = {"vocab_size": 64_256, "d_model": 896, "max_seq_len": 4096}


def full(**fields):
    return FullGdn().on_meta({"type": "gdn", **fields})


def initial(config, **model):
    suite = TestGdn()
    suite.model = model
    block = suite.on_meta(config).to_empty(device="cpu")
    initialise(block, 0)
    return block


# -- the formulas, one token and one head at a time, in float64 -------------------------------------------------------------------------
def turned(pairs: torch.Tensor, position: int) -> torch.Tensor:
    """RoPE of one vector by complex numbers."""
    width = len(pairs)
    phase = torch.tensor([position * 10_000 ** (-2 * k / width) for k in range(width // 2)], dtype=torch.float64)
    z = torch.view_as_complex(pairs.reshape(-1, 2)) * torch.polar(torch.ones_like(phase), phase)
    return torch.view_as_real(z).flatten()


def by_hand(w: dict[str, torch.Tensor], x_TD: torch.Tensor, decay_gate: str, rope_on: str) -> torch.Tensor:
    H, D, S, W = 3, 8, 6, 4
    inner = [w["in_proj.weight"] @ x for x in x_TD]
    states = [torch.zeros(S, D, dtype=torch.float64) for _ in range(H)]
    outputs = []
    for t, x in enumerate(x_TD):
        conv = sum(w["conv.weight"][:, 0, W - 1 - j] * inner[t - j] for j in range(W) if t >= j)
        u = conv / (1 + torch.exp(-conv))
        b, c, g = ((w[f"{name}_proj.weight"] @ u).view(H, -1) for name in "bcg")
        dt = (w["dt_proj.weight"] @ u + w["dt_bias"]).sigmoid()
        mean_g = g.sigmoid().mean(-1)
        decay, gate = (dt, mean_g) if decay_gate == "dt" else (mean_g, dt)
        heads = []
        for h in range(H):
            v = u.view(H, D)[h]
            written = turned(v, t) if "v" in rope_on else v
            key, query = (turned(b[h], t), turned(c[h], t)) if "bc" in rope_on else (b[h], c[h])
            rate = -torch.exp(w["A_log"][h])
            states[h] = torch.exp(decay[h] * rate)[:, None] * states[h] + torch.outer(key, written)
            heads.append(gate[h] * (query @ states[h] + w["D"][h] * v))
        outputs.append(w["out_proj.weight"] @ torch.cat(heads) + w["skip_proj.weight"] @ x)
    return torch.stack(outputs)


@pytest.mark.parametrize("rope_on", ["v", "bc", "vbc"])
@pytest.mark.parametrize("decay_gate", ["dt", "g"])
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_forward_is_the_formula(decay_gate, rope_on, impl):
    block = TestGdn().build({**TINY, "decay_gate": decay_gate, "rope_on": rope_on, "impl": impl})
    x = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(2))
    weights = {name: value.double() for name, value in block.state_dict().items()}
    expected = by_hand(weights, x[0].double(), decay_gate, rope_on)
    torch.testing.assert_close(block(x, Context.for_tokens((1, 9), "cpu"))[0].double(), expected, atol=1e-5, rtol=0)


# -- initial values ---------------------------------------------------------------------------------------------------------------------
def test_multiscale_rates_are_the_head_numbers():
    block = initial(TINY)
    torch.testing.assert_close(block.A_log.exp(), torch.tensor([1.0, 2.0, 3.0])[:, None].expand(3, 6))
    assert torch.equal(block.D, torch.ones(3))
    assert torch.equal(block.dt_bias, torch.zeros(3))


def test_timescale_half_lives_are_log_uniform_up_to_the_context():
    block = initial({**TINY, "d_inner": 800, "d_state": 32, "decay_init": "timescale"}, max_seq_len=1024)
    half_life = math.log(2) / (0.5 * block.A_log.detach().exp())
    assert half_life.min() >= 1 - 1e-4
    assert half_life.max() <= 1024 * (1 + 1e-4)
    # log2 of it is uniform over 0 … 10: of 3200 draws each tenth gets 320, give or take five standard deviations (17)
    counts = torch.histc(half_life.log2(), bins=10, min=0, max=10)
    assert counts.sum() == 3200
    assert (counts - 320).abs().max() < 85


def test_convolution_starts_as_pytorch_has_it():
    """nn.Conv1d: uniform in ±1/sqrt(fan_in), the fan_in of a depthwise tap row being d_conv = 4."""
    weight = initial({**TINY, "d_inner": 800}).conv.weight
    assert 0.49 < weight.abs().max() <= 0.5


# -- accounting at the size of v1.0 -----------------------------------------------------------------------------------------------------
def test_parameters_at_full_size():
    assert sum(p.numel() for p in full().parameters()) + 896 == 8_070_352


def test_decode_state_at_full_size_does_not_grow():
    assert full().state_elems(1) == full().state_elems(32_768) == 40_960 + 3 * 1_280


def test_flops_at_full_size_by_hand():
    recurrence, convolution, rest = 40 * 32 * 32 * (1 + 2 + 2), 1280 * 2 * 4, 1280 * 3
    assert full().mixing_flops(4096) == full().mixing_flops(1) == recurrence + convolution + rest


# -- knobs ------------------------------------------------------------------------------------------------------------------------------
def test_skip_only_tells_the_stack():
    assert not full().owns_residual
    assert full(residual="skip_only").owns_residual


def test_writing_the_same_again_adds():
    """No delta term: without decay n equal writes leave n times the state of one, where Gated DeltaNet would leave it as it was."""
    block = initial({**TINY, "rope": "none", "d_conv": 1})
    with torch.no_grad():
        block.A_log.fill_(-math.inf)            # A = -exp(A_log) = 0: no decay
        x = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(0))
        (_, one), (_, five) = (
            block.step(x.expand(1, n, 32), block.initial_state(1, "cpu", torch.float32), Context.for_tokens((1, n), "cpu"))[1] for n in (1, 5)
        )
    torch.testing.assert_close(five, 5 * one)


def test_kernel_is_resolved_by_name():
    assert full(impl="reference").kernels("cpu") == {"gated_recurrence": "reference", "short_conv": "reference"}
    assert full().kernels("cpu") == {"gated_recurrence": "chunked", "short_conv": "reference"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_inner": 25}, "gdn.d_inner must be a multiple of head_dim, but got self.d_inner=25 and self.head_dim=8"),
        ({"head_dim": 3}, "gdn.head_dim must be even where pairs of it are rotated, but got head_dim=3"),
        ({"d_state": 5, "rope_on": "bc"}, "gdn.d_state must be even where pairs of it are rotated, but got d_state=5"),
    ],
)
def test_impossible_shapes_are_refused_at_load(fields, message):
    config = TestGdn().parsed({**TINY, **fields})
    layer = make_layer("mixer", config, TestGdn().settings())
    with pytest.raises(RecipeError, match=message):
        config.check(layer, layer.model)


def test_odd_widths_pass_where_nothing_is_rotated():
    for fields in ({"d_state": 5}, {"head_dim": 3, "rope": "none"}, {"head_dim": 3, "rope_on": "bc"}):
        config = TestGdn().parsed({**TINY, **fields})
        layer = make_layer("mixer", config, TestGdn().settings())
        config.check(layer, layer.model)
