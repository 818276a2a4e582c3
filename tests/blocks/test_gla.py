import torch

from hymo import Context
from hymo.testing import MixerContract

TINY = {"type": "gla", "n_heads": 2, "head_dim": 8, "expand_v": 1.5, "gate_rank": 4, "impl": "reference"}


class TestGla(MixerContract):
    configs = {"reference": TINY, "chunked": {**TINY, "impl": "chunked"}, "slow": {**TINY, "gate_temperature": 64}}

    def test_flops_against_torch(self, config):
        super().test_flops_against_torch({**config, "impl": "reference"})

    def elementwise_flops(self, block, context):
        """All but the loop's one matrix product, what is read."""
        return block.mixing_flops(context) - 2 * block.state_elems(context)

    def test_gate_is_a_root_of_the_sigmoid(self):
        """α = σ(·)^(1/16): with the gate's projection at 0, a state of ones decays to 2^(−1/16)."""
        block = self.build(TINY)
        with torch.no_grad():
            block.a_proj[1].weight.zero_()
            block.a_proj[1].bias.zero_()
            block.v_proj.weight.zero_()
        _, after = block.step(torch.zeros(1, 1, 32), block.initial_state(1, "cpu", torch.float32) + 1, Context.for_tokens((1, 1), "cpu"))
        torch.testing.assert_close(after, torch.full_like(after, 2 ** (-1 / 16)))
