import math

import pytest
import torch

from hymo import Context
from hymo.errors import RecipeError
from hymo.init import initialise
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


class FullMla(MixerContract):
    model = FULL


def full(**fields):
    return FullMla().on_meta({"type": "mla", **fields})


# -- the formulas, one query and one key at a time, in float64 ------------------------------------------------------------------------
def turned(pairs: torch.Tensor, position: int) -> torch.Tensor:
    """RoPE of one vector by complex numbers."""
    width = len(pairs)
    phase = torch.tensor([position * 10_000 ** (-2 * k / width) for k in range(width // 2)], dtype=torch.float64)
    z = torch.view_as_complex(pairs.view(-1, 2)) * torch.polar(torch.ones_like(phase), phase)
    return torch.view_as_real(z).flatten()


def rms_normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean() + 1e-6).sqrt() * weight


def by_hand(w: dict[str, torch.Tensor], x_TD: torch.Tensor) -> torch.Tensor:
    H, G, K, P, V, R = 4, 2, 12, 4, 10, 7
    queries, keys, values = [], [], []
    for t, x in enumerate(x_TD):
        q = (w["wq_b.weight"] @ rms_normed(w["wq_a.weight"] @ x, w["q_norm.weight"]) * w["q_norm_qk"]).view(H, K)
        queries.append([torch.cat([turned(head[:P], t), head[P:]]) for head in q])
        both = w["wkv_a.weight"] @ x
        expanded = (w["wkv_b.weight"] @ rms_normed(both[:R], w["kv_norm.weight"])).view(G, K - P + V)
        keys.append([torch.cat([turned(both[R:] * w["k_norm_qk"][g], t), expanded[g, : K - P]]) for g in range(G)])
        values.append([expanded[g, K - P :] for g in range(G)])
    outputs = []
    for t in range(len(x_TD)):
        heads = []
        for head in range(H):
            group = head // (H // G)
            scores = torch.stack([queries[t][head] @ keys[s][group] for s in range(t + 1)]) / math.sqrt(K)
            heads.append(sum(a * values[s][group] for s, a in enumerate(scores.softmax(0))))
        outputs.append(w["wo.weight"] @ torch.cat(heads))
    return torch.stack(outputs)


def test_forward_is_the_formula():
    block = TestMla().build(TINY)
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(2))
    expected = by_hand({name: value.double() for name, value in block.state_dict().items()}, x[0].double())
    torch.testing.assert_close(block(x, Context.for_tokens((1, 6), "cpu"))[0].double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("documents", [None, [0] * 4 + [1] * 7], ids=["one_document", "two_documents"])
def test_absorbed_equals_expanded(documents):
    block = TestMla().build(TINY)
    x = torch.randn(1, 11, 32, generator=torch.Generator().manual_seed(3))
    numbers = None if documents is None else torch.tensor([documents])
    ctx = Context.for_tokens((1, 11), "cpu", numbers)
    first, last = (None, None) if numbers is None else (numbers[:, :10], numbers[:, 10:])
    newest = Context.for_tokens((1, 1), "cpu", last, past=Context.for_tokens((1, 10), "cpu", first))
    queries, state = block._queries(x, ctx), block._compress(x)
    absorbed = block._absorbed(*(part[:, -1:] for part in queries), *state, newest)
    torch.testing.assert_close(absorbed, block._expanded(*queries, *state, ctx)[:, -1:], atol=1e-5, rtol=0)


# -- accounting at the size of v1.0 -----------------------------------------------------------------------------------------------------
def test_parameters_at_full_size():
    router, norms = 896 * 16 + 16, 2 * 896
    assert sum(p.numel() for p in full().parameters()) == 2_771_184 - router - norms == 2_755_040


def test_decode_cache_is_160_numbers_a_token():
    assert full().state_elems(4096) == 160 * 4096


def test_flops_of_attention_are_half_a_square():
    assert full().mixing_flops(4096) == 2 * 16 * (128 + 128) * 4096 / 2


@pytest.mark.parametrize(("rope_dim", "scales"), [(0, 0), (32, 4 * 32), (128, 4 * 128)])
def test_partial_rope_moves_width_from_latent_to_rotated_keys(rope_dim, scales):
    count = sum(p.numel() for p in full(rope_dim=rope_dim).parameters())
    moved = 896 * rope_dim + 128 * 4 * (128 - rope_dim + 128) + scales
    assert count == 896 * 224 + 224 + 224 * 2048 + 2048 + 896 * 128 + 128 + 2048 * 896 + moved


def test_nope_keeps_parameters_and_flops():
    with_rope, without = full(), full(rope="none")
    assert [p.shape for p in with_rope.parameters()] == [p.shape for p in without.parameters()]
    assert with_rope.mixing_flops(100) == without.mixing_flops(100)


def test_scales_start_at_one():
    block = TestMla().on_meta(TINY).to_empty(device="cpu")
    initialise(block, 0)
    assert torch.equal(block.q_norm_qk, torch.ones(4 * 12))
    assert torch.equal(block.k_norm_qk, torch.ones(2, 4))


# -- what is refused --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_kv_groups": 7, "n_heads": 16}, "mla.n_kv_groups must divide n_heads.*n_kv_groups=7 and self.n_heads=16; choose from 1, 2, 4, 8, 16"),
        ({"rope_dim": 14}, "rope_dim must be even and at most head_dim, but got self.rope_dim=14"),
        ({"rope_dim": 3}, "rope_dim must be even and at most head_dim, but got self.rope_dim=3"),
    ],
)
def test_impossible_shapes_are_refused_at_load(fields, message):
    config = TestMla().parsed({**TINY, **fields})
    layer = make_layer("mixer", config, TestMla().settings())
    with pytest.raises(RecipeError, match=message):
        config.check(layer, layer.model)
