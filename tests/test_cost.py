"""The reference figures are those of the model's specification, and counts by hand."""

import pytest
import torch

from hymo.block import Context
from hymo.cost import count, count_model, memory
from hymo.model import build_hymo
from hymo.recipe import load_recipe

V1 = {
    "embedding (tied with head)": (1, 57_573_376, 57_573_376),
    "gdn": (24, 193_688_448, 193_688_448),
    "mla": (8, 22_169_472, 22_169_472),
    "moe routed": (8, 99_090_432, 792_723_456),
    "moe shared": (8, 49_545_216, 49_545_216),
    "mtp": (2, 12_386_304, 12_386_304),
    "final norm": (1, 896, 896),
}


@pytest.fixture(scope="module")
def v1():
    return count(load_recipe("v1_0"))


def test_v1_parameters_to_the_unit(v1):
    assert {row.name: (row.layers, row.active, row.stored) for row in v1.components} == V1
    assert v1.active == 434_454_144
    assert v1.stored == 1_128_087_168


def test_v1_layers(v1):
    assert [layer.name for layer in v1.layers][:6] == ["M0", "G0", "G1", "G2", "M1", "G3"]
    assert v1.layers[1].stored == 8_070_352
    assert v1.layers[0].stored == 2_771_184 + 17 * 6_193_152
    assert v1.layers[0].active == 2_771_184 + 3 * 6_193_152
    assert sum(layer.stored for layer in v1.layers) + 57_573_376 + 12_386_304 + 896 == v1.stored


def test_v1_decoding_state(v1):
    # 160 numbers a token in each of 8 MLA layers, bf16; in each of 24 GDN layers a state of 40,960, fp32, and three inputs of 1,280, bf16
    assert v1.kv_bytes == 2 * 8 * 160 * 4096
    assert v1.state_bytes == 24 * (4 * 40_960 + 2 * 3 * 1_280)
    exact = count(load_recipe("v1_0", ["train.dtype=fp32"]))
    assert exact.kv_bytes == 4 * 8 * 160 * 4096
    assert exact.state_bytes == 4 * 24 * (40_960 + 3 * 1_280)
    assert [(layer.cache_bytes, layer.state_bytes) for layer in v1.layers[:2]] == [(2 * 160 * 4096, 0), (0, 4 * 40_960 + 2 * 3 * 1_280)]


def test_v1_flops(v1):
    """Two per Linear weight, by hand; causal attention sees t/2 tokens on average; the recurrence multiplies its state at least twice."""
    d, t = 896, 4096
    mla = d * 224 + 224 * 2048 + d * 160 + 128 * 4 * (96 + 128) + 2048 * d
    gdn = 2 * d * 1280 + d * d + 3 * 1280 * 1280 + 1280 * 40
    attention = 8 * 2 * 16 * (128 + 128) * t / 2
    rows = {row.name: row.flops_per_token_forward for row in v1.components}
    assert rows["embedding (tied with head)"] == 2 * 64_256 * d
    assert rows["mla"] == pytest.approx(8 * 2 * (mla + 16 * d) + attention)
    assert rows["moe routed"] == 2 * 99_090_432
    assert rows["moe shared"] == 2 * 49_545_216
    assert rows["mtp"] == 2 * (12_386_304 + 2 * 64_256 * d)
    assert 4 * 40_960 < rows["gdn"] / 24 - 2 * gdn < 8 * 40_960
    assert v1.flops_per_token_forward == pytest.approx(sum(rows.values()))
    assert v1.flops_per_token_train == 3 * v1.flops_per_token_forward
    assert v1.flops_per_token_train == pytest.approx(3.7e9, rel=0.02)
    assert v1.flops_per_token_train_square - v1.flops_per_token_train == pytest.approx(3 * attention)


def test_an_untied_head_costs_weights_but_no_more_flops():
    tied, untied = (count(load_recipe("v1_0", [f"model.tie_embeddings={flag}"], scale="tiny")) for flag in ("true", "false"))
    assert untied.stored - tied.stored == 257 * 32
    assert untied.flops_per_token_train == tied.flops_per_token_train
    assert "head" in {row.name for row in untied.components}


def test_no_heads_no_row():
    cost = count(load_recipe("v1_0", ["model.mtp={depth: 0, weights: []}"], scale="tiny"))
    assert "mtp" not in {row.name for row in cost.components}


def test_stored_is_what_the_model_holds():
    recipe = load_recipe("v1_0", scale="tiny")
    model = build_hymo(recipe)
    assert count_model(model, 64).stored == sum(p.numel() for p in model.parameters()) == count(recipe).stored


# -- memory -----------------------------------------------------------------------------------------------------------------------
def test_memory_of_weights_gradients_and_moments():
    recipe = load_recipe("v1_0")
    parts = memory(recipe, 1, "cuda")
    biases = 8 * 16                                                 # the routers' biases take no gradient
    orthogonal = 24 * (8_070_352 - 896 - 6_480 - 1280 * 40) + 8 * (2_771_184 - 2 * 896 - 14_352 - 2_048 - 128 - 224 - 128)
    assert parts["weights"] == 4 * 1_128_087_168
    assert parts["gradients"] == 4 * (1_128_087_168 - biases)
    # AdamW keeps two moments; NorMuon one (dt_proj, which is AdamW's, is small enough to be counted as its own)
    assert parts["optimizer"] == pytest.approx(8 * (1_128_087_168 - biases) - 4 * orthogonal, rel=1e-3)
    assert parts["logits"] < 4 * 2**30


@pytest.mark.parametrize("scale", ["tiny", "proxy"])
def test_activations_are_what_autograd_keeps(scale):
    recipe = load_recipe("v1_0", scale=scale)
    model, rows, length = build_hymo(recipe), 4, recipe.train.seq_len
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.zeros(rows, length, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _, hidden = model.train().forward_with_hidden(tokens)
        model.mtp(hidden, tokens, model.embedding, Context.for_tokens((rows, length), "cpu"))
    logits = rows * length * recipe.model.vocab_size * 4
    measured = sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in own) - 2 * logits
    assert 0.75 < memory(recipe, rows, "cpu")["activations"] / measured < 1.5


def test_checkpointing_saves_activations():
    plain, saving = (memory(load_recipe("v1_0", [f"train.checkpoint_activations={flag}"]), 4, "cuda") for flag in ("false", "true"))
    assert saving["activations"] < plain["activations"] / 4
    assert {k: v for k, v in plain.items() if k != "activations"} == {k: v for k, v in saving.items() if k != "activations"}
