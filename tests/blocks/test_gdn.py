import pytest
import torch

from hymo import Context
from hymo.errors import RecipeError
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
