import pytest
import torch

from hymo import Context
from hymo.errors import RecipeError
from hymo.testing import MixerContract, make_layer

TINY = {"type": "mla", "n_heads": 4, "n_kv_groups": 2, "head_dim": 12, "rope_dim": 4, "v_head_dim": 10, "q_lora_rank": 9, "kv_lora_rank": 7}
FULL = {"vocab_size": 64_256, "d_model": 896, "max_seq_len": 4096}


class TestMla(MixerContract):
    configs = {
        "default": TINY,
        "multi_query": {**TINY, "n_kv_groups": 1},
        "one_group_a_head": {**TINY, "n_kv_groups": 4},
        "no_rotary_part": {**TINY, "rope_dim": 0},
        "all_rotary": {**TINY, "rope_dim": 12},
        "unscaled": {**TINY, "qk_scale": False},
        "nope": {**TINY, "rope": "none"},
        "yarn": {**TINY, "rope": {"type": "rope_yarn", "factor": 4.0}},
    }
