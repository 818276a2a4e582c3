from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from hymo import Context
from hymo.errors import RecipeError
from hymo.testing import HeadContract, make_layer

MLA = {"type": "mla", "n_heads": 4, "n_kv_groups": 2, "head_dim": 16, "rope_dim": 8, "v_head_dim": 16, "q_lora_rank": 16, "kv_lora_rank": 16}


class TestMtp(HeadContract):
    configs: ClassVar = {
        "chained": {"type": "mtp", "inter_dim": 24},
        "unchained": {"type": "mtp", "inter_dim": 24, "chain": False, "depth": 3, "weights": [0.3, 0.2, 0.1]},
        "off": {"type": "mtp", "depth": 0, "weights": []},
        "deepseek": {"type": "mtp", "kind": "deepseek", "inter_dim": 24, "mixer": MLA},
    }

    @pytest.mark.parametrize("chain", [True, False])
    def test_by_hand(self, chain):
        block = self.build({"type": "mtp", "inter_dim": 24, "chain": chain})
        hidden, tokens, embed = self.inputs(6)
        first, second = block(hidden, tokens, embed, Context.for_tokens((2, 6), "cpu"))

        def swiglu(head, x):
            gate, up = (x @ head.ffn.w_gate_up.weight.T).chunk(2, dim=-1)
            return (F.silu(gate) * up) @ head.ffn.w_down.weight.T

        one = swiglu(block.heads[0], hidden[:, :5] + embed.weight[tokens[:, 1:]])
        two = swiglu(block.heads[1], (one if chain else hidden)[:, :4] + embed.weight[tokens[:, 2:]])
        torch.testing.assert_close(first, one)
        torch.testing.assert_close(second, two)

    def test_no_tokens_left_for_a_head(self):
        block = self.build({"type": "mtp", "inter_dim": 24, "depth": 3, "weights": [1, 1, 1]})
        hidden, tokens, embed = self.inputs(2)
        assert [h.shape[1] for h in block(hidden, tokens, embed, Context.for_tokens((2, 2), "cpu"))] == [1, 0, 0]

    def test_v1_parameters(self):
        config = self.parsed({"type": "mtp"})
        layer = make_layer("head", config, {**self.settings(), "d_model": 896})
        with torch.device("meta"):
            block = type(self.on_meta({"type": "mtp"}))(config, layer)
        assert sum(p.numel() for p in block.parameters()) == 12_386_304
        assert block.loss_weights == (0.3, 0.1)

    def test_deepseek_takes_the_models_own_mla(self):
        config = self.parsed({"type": "mtp", "kind": "deepseek", "depth": 1, "weights": [0.3]})
        settings = {**self.settings(), "pattern": "M", "layers": {"M": {"mixer": MLA}}}
        layer = make_layer("head", config, settings)
        config.check(layer, layer.model)
        assert config.layer_mixer(layer.model) == layer.model.layers["M"].mixer

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"depth": 1}, "one weight per head"),
            ({"weights": [0.3, -0.1]}, "must not be negative"),
            ({"kind": "deepseek"}, "needs a layer whose mixer is mla"),
            ({"mixer": MLA}, "read by kind deepseek only"),
        ],
    )
    def test_bad_settings_are_refused(self, change, message):
        config = self.parsed({"type": "mtp", **change})
        layer = make_layer("head", config, self.settings())
        with pytest.raises(RecipeError, match=message):
            config.check(layer, layer.model)
