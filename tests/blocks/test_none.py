import torch

from hymo import Context
from hymo.testing import FfnContract, PositionContract


class TestNoPosition(PositionContract):
    configs = {"default": {"type": "none"}}

    def test_leaves_heads_as_they_are(self):
        x = torch.randn(1, 5, 2, 8, generator=torch.Generator().manual_seed(0))
        assert self.build({"type": "none"})(x, Context.for_tokens((1, 5), "cpu")) is x


class NoFfn(FfnContract):
    """Not collected as a suite: the absence of a sub-layer has no output that depends on its input."""


def test_no_ffn_adds_nothing():
    block = NoFfn().build({"type": "none"})
    x = torch.ones(2, 3, 32)
    assert torch.equal(block(x, Context.for_tokens((2, 3), "cpu")), torch.zeros(2, 3, 32))
    assert not list(block.parameters())
    assert block.mixing_flops(64) == block.state_elems(64) == 0
