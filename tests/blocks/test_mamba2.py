import torch

from hymo import Context
from hymo.init import initialise
from hymo.testing import MixerContract

TINY = {"type": "mamba2", "d_inner": 32, "head_dim": 8, "d_state": 6, "impl": "reference"}


class TestMamba2(MixerContract):
    configs = {"reference": TINY, "chunked": {**TINY, "impl": "chunked"}, "two_groups": {**TINY, "n_groups": 2}, "no_conv": {**TINY, "d_conv": 1}}

    def test_flops_against_torch(self, config):
        super().test_flops_against_torch({**config, "impl": "reference"})

    def elementwise_flops(self, block, context):
        """All but the loop's one matrix product, what is read."""
        c = block.config
        return block.mixing_flops(context) - 2 * c.d_inner * c.d_state

    def test_initial_time_step_and_rate_lie_where_published(self):
        block = self.on_meta({**TINY, "d_inner": 2048}).to_empty(device="cpu")
        initialise(block, 0)
        dt, rate = torch.nn.functional.softplus(block.dt_bias), block.A_log.exp()
        assert 1e-3 * 0.999 <= dt.min() <= dt.max() <= 0.1 * 1.001
        assert abs(torch.log10(dt).mean() + 2) < 0.15, "log-uniform over two decades"
        assert 1 <= rate.min() <= rate.max() <= 16
        assert abs(rate.mean() - 8.5) < 1

    def test_one_token_by_hand(self):
        """o = C·(B (Δx)) + D x from a zero state: the write is scaled by the time step, the skip is not."""
        block = self.build({**TINY, "d_conv": 1}).double()
        w = {name: p.detach() for name, p in block.named_parameters()}
        u = torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        silu = torch.nn.functional.silu
        x, write, read = silu(w["in_proj.weight"] @ u * w["conv.weight"][:, 0, 0] + w["conv.bias"]).split([32, 6, 6])
        dt = torch.log1p(torch.exp(w["dt_proj.weight"] @ u + w["dt_bias"])).repeat_interleave(8)
        gated = (x * dt * (write @ read) + w["D"].repeat_interleave(8) * x) * silu(w["z_proj.weight"] @ u)
        y = w["o_proj.weight"] @ (w["norm.weight"] * gated / (gated.square().mean() + 1e-6).sqrt())
        torch.testing.assert_close(block(u[None, None], Context.for_tokens((1, 1), "cpu"))[0, 0], y)
