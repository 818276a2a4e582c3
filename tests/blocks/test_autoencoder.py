import math

import pytest
import torch

from hymo import Context
from hymo.errors import RecipeError
from hymo.recipe import load_recipe
from hymo.testing import MixerContract


def noise(seed, dtype=torch.float32):
    return torch.randn(2, 20, 32, dtype=dtype, generator=torch.Generator().manual_seed(seed))


class TestAutoencoder(MixerContract):
    configs = {"short": {"type": "autoencoder", "length": 3}, "one": {"type": "autoencoder", "length": 1}}

    def test_mixes_over_time(self, config):
        """Not from the token before, as other mixers: from token n-1, and from no other."""
        block, n = self.build(config), config["length"]
        x, other, ctx = noise(1), noise(2), Context.for_tokens((2, 20), "cpu")
        assert not torch.equal(block(x, ctx)[:, n:], block(other, ctx)[:, n:])
        other[:, n - 1] = x[:, n - 1]
        assert torch.equal(block(x, ctx), block(other, ctx))

    def test_causal(self, config):
        block, n = self.build(config), config["length"]
        x, other, ctx = noise(1), noise(2), Context.for_tokens((2, 20), "cpu")
        other[:, : n - 1] = x[:, : n - 1]
        assert torch.equal(block(x, ctx)[:, :n], block(other, ctx)[:, :n])
        assert (block(x, ctx)[:, :n] == 0).all()

    def test_by_the_definition(self):
        """Every decoded position from the raw weights in float64, with the angles written out."""
        block = self.build({"type": "autoencoder", "length": 3}).double()
        w = {name: p.detach() for name, p in block.named_parameters()}
        x = noise(1, torch.float64)
        y = block(x, Context.for_tokens((2, 20), "cpu"))

        def norm(z, weight):
            return weight * z / (z.square().mean() + 1e-6).sqrt()

        def gelu(z):
            return z * (1 + torch.erf(z / 2**0.5)) / 2

        for j in range(17):
            p = torch.tensor([f(j * 10000 ** (-i / 15)) for f in (math.sin, math.cos) for i in range(16)], dtype=torch.float64)
            h = gelu(w["linear_1.weight"] @ norm(x[0, 2] + p, w["norm_1.weight"]) + w["linear_1.bias"])
            expected = gelu(w["linear_2.weight"] @ norm(h, w["norm_2.weight"]) + w["linear_2.bias"])
            torch.testing.assert_close(y[0, 3 + j], expected, atol=1e-5, rtol=0)

    def test_it_takes_the_identity_path_out(self, config):
        assert self.build(config).owns_residual


def test_an_odd_width_is_refused():
    layers = "model.layers={C: {mixer: autoencoder}}"
    with pytest.raises(RecipeError, match="must be even and 4 at least, but got 33"):
        load_recipe("mad", ["data.source=synthetic:compression", "model.pattern=C", "model.layers.A=null", layers, "model.d_model=33"])
