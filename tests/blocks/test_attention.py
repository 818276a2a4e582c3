import pytest
import torch

from hymo import Context
from hymo.errors import RecipeError
from hymo.testing import MixerContract, make_layer

TINY = {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 8}


class TestAttention(MixerContract):
    configs = {
        "grouped": TINY,
        "multi_head": {**TINY, "n_kv_heads": 4},
        "multi_query": {**TINY, "n_kv_heads": 1},
        "no_qk_norm": {**TINY, "qk_norm": False},
        "gated": {**TINY, "output_gate": True},
        "partial_rope": {**TINY, "rope_dim": 4},
        "nope": {**TINY, "rope": "none"},
        "window": {**TINY, "window": 7},
        "window_of_one": {**TINY, "window": 2, "rope_dim": 0},
    }

    def test_flops_against_torch(self, config):
        if "window" not in config:      # torch counts the whole square there; the band is counted by hand below
            super().test_flops_against_torch(config)

    def test_equals_the_definition(self):
        """One query head after another, float64, from the formula: normed, rotated, masked, softmaxed, gated."""
        block = self.build({**TINY, "output_gate": True, "window": 5}).double()
        x = torch.randn(1, 12, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        y = block(x, Context.for_tokens((1, 12), "cpu"))
        weights = {name: p.detach() for name, p in block.named_parameters()}
        heads = []
        for h in range(4):
            q, k, v = (x[0] @ weights[f"{w}.weight"][8 * i : 8 * i + 8].T for w, i in (("wq", h), ("wk", h // 2), ("wv", h // 2)))
            q, k = (weights[f"{n}_norm.weight"] * z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt() for n, z in (("q", q), ("k", k)))
            for z in (q, k):
                for t in range(12):
                    for p in range(4):
                        a, b = z[t, 2 * p].clone(), z[t, 2 * p + 1].clone()
                        phi = torch.tensor(t * 10000 ** (-2 * p / 8), dtype=torch.float64)
                        z[t, 2 * p], z[t, 2 * p + 1] = a * phi.cos() - b * phi.sin(), a * phi.sin() + b * phi.cos()
            out = []
            for t in range(12):
                seen = slice(max(0, t - 4), t + 1)
                out.append(torch.softmax(k[seen] @ q[t] / 8**0.5, 0) @ v[seen])
            heads.append(torch.stack(out) * torch.sigmoid(x[0] @ weights["wg.weight"][8 * h : 8 * h + 8].T))
        torch.testing.assert_close(y[0], torch.cat(heads, -1) @ weights["wo.weight"].T, atol=1e-6, rtol=0)

    @pytest.mark.parametrize(("window", "seen"), [(3, 1 + 2 + 3 * 8), (10, 55), (50, 55), (None, 50)])
    def test_flops_of_a_window(self, window, seen):
        """Keys seen over 10 tokens by hand; without a window the triangle is counted as half of the square, as everywhere."""
        assert self.on_meta({**TINY, "window": window}).mixing_flops(10) * 10 == pytest.approx(4 * 4 * 8 * seen)

    def test_heads_that_do_not_divide(self):
        config = self.parsed({**TINY, "n_kv_heads": 3})
        layer = make_layer("mixer", config, self.settings())
        with pytest.raises(RecipeError, match="n_kv_heads must divide n_heads"):
            config.check(layer, layer.model)
