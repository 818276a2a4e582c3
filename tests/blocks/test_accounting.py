"""What `hymo count-params` says of one layer of each mixer, against counts by hand from the papers' own shapes, at d_model 896 and 4,096 tokens.

FLOPs are forward, per token: two for every weight of a Linear; a state number takes one to decay, two to write and two to read, and two more where
what a key holds is erased first; a causal convolution of four tokens takes eight a channel.
"""

import pytest

from hymo.cost import count
from hymo.recipe import load_recipe

T, NORM = 4096, 896     # tokens; the layer's own norm


def one_layer(mixer, settings):
    """The cost of the only layer of a stack without FFN."""
    fields = ", ".join(f"{key}: {value}" for key, value in {"type": mixer, **settings}.items())
    overrides = ["model.pattern=X", "model.layers.M=null", "model.layers.G=null", f"model.layers.X={{mixer: {{{fields}}}}}"]
    [found] = count(load_recipe("v1_0", overrides)).layers
    return found


@pytest.mark.parametrize(
    ("mixer", "settings", "parameters", "cache", "state", "flops"),
    [
        # W_q, W_o 896², W_k, W_v 896·128, two norms of 64; 14 heads of 64 look at 2,048 tokens on average, twice two FLOPs a product
        ("attention", {}, 2 * 896**2 + 2 * 896 * 128 + 128, 256 * T, 0, 2 * (2 * 896**2 + 2 * 896 * 128) + 4 * 14 * 64 * 2048),
        # a window of 512: the first 512 tokens see 1 … 512, the rest 512 each; one token need not be kept for the next
        ("attention", {"window": 512, "qk_norm": "false"}, 1_835_008, 256 * 511, 0, 3_670_016 + 4 * 896 * (512 * 513 / 2 + (T - 512) * 512) / T),
        # multi-query, with an output gate: three matrices of 896², one key and value head
        ("attention", {"n_kv_heads": 1, "output_gate": "true"}, 3 * 896**2 + 2 * 896 * 64 + 128, 128 * T, 0,
         2 * (3 * 896**2 + 2 * 896 * 64) + 4 * 14 * 64 * 2048),
        # q, k 672 wide, v, gate and output 1,344; two gates of 6; convolution over 2,688 channels; norm of 224; A and dt of 6 each
        ("gated_deltanet", {}, 4_816_896 + 10_752 + 10_752 + 224 + 12, 0, 6 * 112 * 224 + 3 * 2688,
         2 * (4_816_896 + 10_752) + 7 * 150_528 + 8 * 2688),
        # q, k, v, output 896²; decay and gate through rank 128; write strength of 7; convolution over 2,688 channels; norm of 128; A 7, dt 896
        ("kda", {}, 3_211_264 + 458_752 + 6_272 + 10_752 + 128 + 7 + 896, 0, 7 * 128**2 + 3 * 2688,
         2 * (3_211_264 + 458_752 + 6_272) + 7 * 114_688 + 8 * 2688),
        # x 1,792, B and C 128; z and output 1,792; 28 time steps; convolution with bias over 2,048 channels; norm of 1,792; A, dt, D of 28 each;
        # beside the state, Δx is one FLOP and D·x two for each of the 1,792 channels
        ("mamba2", {}, 896 * (2048 + 1792 + 28 + 1792) + 5 * 2048 + 1792 + 84, 0, 1792 * 128 + 3 * 2048,
         2 * 896 * (2048 + 1792 + 28 + 1792) + 5 * 229_376 + 8 * 2048 + 3 * 1792),
        # q, k 448; v, gate, output 896; decay through rank 16 with a bias of 448; norm of 224; no convolution
        ("gla", {}, 896 * (448 + 448 + 896 + 896 + 896) + 896 * 16 + 16 * 448 + 448 + 224, 0, 4 * 112 * 224,
         2 * (896 * 3584 + 896 * 16 + 16 * 448) + 5 * 100_352),
        # two matrices of 896² with biases, two norms; one vector kept
        ("autoencoder", {}, 2 * 896**2 + 4 * 896, 0, 896, 4 * 896**2),
    ],
)  # fmt: skip
def test_one_layer_by_hand(mixer, settings, parameters, cache, state, flops):
    found = one_layer(mixer, settings)
    assert (found.stored, found.active) == (parameters + NORM, parameters + NORM)
    assert (found.cache_elems, found.state_elems) == (cache, state)
    assert found.flops_per_token_forward == flops
