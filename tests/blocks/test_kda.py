import torch

from hymo import Context
from hymo.testing import MixerContract

TINY = {"type": "kda", "n_heads": 2, "head_dim": 8, "impl": "reference"}


class TestKda(MixerContract):
    configs = {"reference": TINY, "chunked": {**TINY, "impl": "chunked"}, "no_conv": {**TINY, "d_conv": 1}}

    def test_flops_against_torch(self, config):
        super().test_flops_against_torch({**config, "impl": "reference"})

    def elementwise_flops(self, block, context):
        """All but the loop's two matrix products, what the key holds and what is read."""
        c = block.config
        return block.mixing_flops(context) - 4 * c.n_heads * c.head_dim**2

    def test_decay_differs_between_channels_and_is_held_by_its_rate(self):
        """α = exp(−exp(A_log) softplus(f + dt_bias)): with f at 0 and equal biases every channel of a head decays alike, at the formula's rate."""
        block = self.build(TINY)
        with torch.no_grad():
            for projection in (block.f_proj[1], block.v_proj):
                projection.weight.zero_()
            block.dt_bias.fill_(0.3)
            block.A_log.copy_(torch.tensor([0.0, 1.0]))
        history, state = block.initial_state(1, "cpu", torch.float32)
        _, (_, after) = block.step(torch.zeros(1, 1, 32), (history, state + 1), Context.for_tokens((1, 1), "cpu"))
        softplus = torch.log1p(torch.tensor(0.3).exp())
        torch.testing.assert_close(after[0, 0], torch.full((8, 8), (-softplus).exp().item()))
        torch.testing.assert_close(after[0, 1], torch.full((8, 8), (-torch.e * softplus).exp().item()))
