from typing import ClassVar

import torch

from hymo import Context
from hymo.testing import FfnContract


class TestDenseFfn(FfnContract):
    configs: ClassVar = {"default": {"type": "dense_ffn"}, "odd": {"type": "dense_ffn", "inter_dim": 13}}

    def test_is_swiglu(self):
        block = self.build(self.configs["odd"])
        gate, up = block.w_gate_up.weight[:13], block.w_gate_up.weight[13:]
        x = torch.randn(32, generator=torch.Generator().manual_seed(0))
        g = gate @ x
        expected = block.w_down.weight @ (g * torch.sigmoid(g) * (up @ x))
        torch.testing.assert_close(block(x.view(1, 1, 32), Context.for_tokens((1, 1), "cpu")).flatten(), expected)

    def test_parameters_by_hand(self):
        assert sum(p.numel() for p in self.on_meta({"type": "dense_ffn", "inter_dim": 7}).parameters()) == 3 * 32 * 7
