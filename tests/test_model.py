import math

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from hymo.data.batch import Batch
from hymo.model import build_hymo
from hymo.recipe import load_recipe

VOCAB = 257


def tiny(*overrides):
    return load_recipe("v1_0", overrides, scale="tiny")


def batch(rows=2, length=24, documents=1, seed=0, padding=0):
    """Random rows of `documents` equal documents each, the last `padding` positions of padding."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (rows, length + 1), generator=generator)
    numbers = (torch.arange(length + 1) * documents // (length + 1)).to(torch.int32).repeat(rows, 1)
    if padding:
        numbers[:, -padding:] = -1
    return Batch(tokens, numbers)


def total(losses, model):
    main = losses.main_sum / losses.main_count
    heads = (w * s / n for w, s, n in zip(model.mtp_weights, losses.mtp_sums, losses.mtp_counts, strict=True))
    return main + sum(heads) + sum(losses.aux.values())


# -- forward ----------------------------------------------------------------------------------------------------------------------
def test_first_loss_is_ln_vocab_plus_a_half():
    model = build_hymo(tiny("model.d_model=256", "model.softcap=0")).eval()
    data = batch(8, 64)
    losses = model.loss(data)
    assert (losses.main_sum / losses.main_count).item() == pytest.approx(math.log(VOCAB) + 0.5, abs=0.05)


def test_loss_is_the_cross_entropy_of_the_logits():
    model = build_hymo(tiny()).eval()
    data = batch(documents=3, padding=4)
    logits, hidden = model.forward_with_hidden(data.inputs, data.input_documents)
    losses = model.loss(data, per_token=True)
    expected = F.cross_entropy(logits.transpose(1, 2), data.labels(), ignore_index=-100, reduction="none")
    torch.testing.assert_close(losses.per_token_BT, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(losses.main_sum, expected.sum())
    assert losses.main_count == (data.labels() != -100).sum()
    for k, ahead in enumerate(model.mtp(hidden, data.inputs, model.embedding, _context(data)), start=1):
        logits = 15 * torch.tanh(ahead @ model.embedding.weight.T / 15)
        expected = F.cross_entropy(logits.flatten(0, 1), data.labels(k).flatten(), ignore_index=-100, reduction="sum")
        torch.testing.assert_close(losses.mtp_sums[k - 1], expected)
        assert losses.mtp_counts[k - 1] == (data.labels(k) != -100).sum()


def test_logits_at_some_places_are_those_of_all():
    model = build_hymo(tiny()).eval()
    tokens = batch().inputs
    where = torch.zeros_like(tokens, dtype=torch.bool)
    where[0, 3] = where[1, :2] = where[1, -1] = True
    torch.testing.assert_close(model.logits_at(tokens, where), model(tokens)[where], atol=1e-5, rtol=1e-5)



def _context(data):
    from hymo.block import Context

    return Context.for_tokens(tuple(data.inputs.shape), "cpu", data.input_documents)


def test_residual_stream_by_hand():
    model = build_hymo(tiny()).eval()
    data = batch()
    x = model.embedding(data.inputs)
    for layer in model.layers:
        x = x + layer.mixer(F.rms_norm(x, (32,), layer.mixer_norm.weight, 1e-6), _context(data))
        if layer.ffn is not None:
            x = x + layer.ffn(F.rms_norm(x, (32,), layer.ffn_norm.weight, 1e-6), _context(data))
    logits = 15 * torch.tanh(F.rms_norm(x, (32,), model.norm.weight, 1e-6) @ model.embedding.weight.T / 15)
    torch.testing.assert_close(model(data.inputs, data.input_documents), logits, atol=1e-5, rtol=1e-5)
    assert [layer.ffn is None for layer in model.layers] == [False, True, True, True] * 2


def test_a_block_that_owns_its_residual_replaces_the_stream():
    skip = build_hymo(tiny("model.layers.G.mixer.residual=skip_only")).eval()
    x, ctx = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0)), _context(batch(1, 6))
    layer = skip.layers[1]
    torch.testing.assert_close(layer(x, ctx), layer.mixer(layer.mixer_norm(x), ctx))


def test_logits_stay_below_the_cap():
    model = build_hymo(tiny("model.softcap=0.5"))
    assert model(batch().inputs).abs().max() < 0.5


def test_untied_head_is_a_matrix_of_its_own():
    tied, untied = build_hymo(tiny()), build_hymo(tiny("model.tie_embeddings=false"))
    assert tied.head_weight is tied.embedding.weight
    assert untied.head_weight is not untied.embedding.weight
    extra = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert extra == VOCAB * 32


def test_heads_do_not_own_the_embedding():
    model = build_hymo(tiny())
    assert [path for path, p in model.named_parameters() if p is model.embedding.weight] == ["embedding.weight"]
    assert not any(module is model for module in model.mtp.modules())


def test_packed_documents_equal_separate_ones():
    model = build_hymo(tiny()).eval()
    data = batch(1, 24, documents=2)
    cut = int((data.input_documents[0] == 0).sum())
    packed = model(data.inputs, data.input_documents)
    apart = torch.cat([model(data.inputs[:, :cut]), model(data.inputs[:, cut:])], dim=1)
    torch.testing.assert_close(packed, apart, atol=2e-5, rtol=1e-4)


# -- gradients --------------------------------------------------------------------------------------------------------------------
def gradients(model, data):
    model.zero_grad()
    losses = model.loss(data)
    total(losses, model).backward()
    return losses, {path: p.grad.clone() for path, p in model.named_parameters() if p.grad is not None}


def test_every_trained_parameter_gets_a_gradient():
    model = build_hymo(tiny()).train()
    _, grads = gradients(model, batch(4, 64))
    wanted = {path for path, p in model.named_parameters() if p.requires_grad}
    assert grads.keys() == wanted
    assert {path for path, p in model.named_parameters() if not p.requires_grad} == {f"layers.{i}.ffn.gate.bias" for i in (0, 4)}
    assert all(torch.isfinite(g).all() for g in grads.values())


@pytest.mark.parametrize("balance", ["ema_bias", "aux_loss"])
def test_checkpointing_changes_nothing_and_counts_once(balance):
    overrides = [f"model.layers.M.ffn.balance={balance}", "model.layers.M.ffn.aux_weight=0.1"]
    plain = build_hymo(tiny(*overrides)).train()
    saving = build_hymo(tiny(*overrides, "train.checkpoint_activations=true")).train()
    data = batch(2, 32)
    (a, expected), (b, got) = gradients(plain, data), gradients(saving, data)
    assert torch.equal(a.main_sum, b.main_sum)
    assert a.aux.keys() == b.aux.keys()
    assert len(a.aux) == (2 if balance == "aux_loss" else 0)
    assert all(torch.equal(a.aux[name], b.aux[name]) for name in a.aux)
    for path in expected:
        torch.testing.assert_close(got[path], expected[path], atol=1e-7, rtol=1e-5)
    for one, other in zip(plain.layers, saving.layers, strict=True):
        if one.ffn is not None:
            assert one.ffn.assigned_E.sum() == 2 * 32 * 2
            assert torch.equal(one.ffn.assigned_E, other.ffn.assigned_E)


def test_sums_add_up_over_micro_batches():
    model = build_hymo(tiny()).eval()
    data = batch(4, 16, documents=2)
    whole, parts = model.loss(data), [model.loss(data.rows(i, i + 2)) for i in (0, 2)]
    torch.testing.assert_close(whole.main_sum, sum(part.main_sum for part in parts))
    assert whole.main_count == sum(part.main_count for part in parts)
    for k in range(2):
        torch.testing.assert_close(whole.mtp_sums[k], sum(part.mtp_sums[k] for part in parts))


def test_metrics_are_means_over_layers():
    model = build_hymo(tiny()).train()
    model.loss(batch())
    for layer, counts in ((0, [8, 0, 0, 0]), (4, [2, 2, 2, 2])):
        model.layers[layer].ffn.assigned_E.copy_(torch.tensor(counts))
    assert model.after_optimizer_step()["moe/max_vio"].item() == pytest.approx((3.0 + 0.0) / 2)


# -- compilation ------------------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("default")      # torch's compiler warns of what it does itself
def test_layers_of_a_kind_compile_once():
    """At most: the first M, which may make what the pass shares; G; the other Ms; and M where it is recomputed, for it does not count then. No
    graph breaks, and nothing is compiled after the first step, whatever the documents."""
    recipe = tiny("train.checkpoint_activations=true", "model.pattern=MGMG")
    plain, compiled = build_hymo(recipe).train(), build_hymo(recipe).train()
    torch.compiler.reset()
    counter = CompileCounter()
    for layer in compiled.layers:
        layer.compile(backend=counter, fullgraph=True)
    compiled_graphs = []
    for documents in (1, 2):
        data = batch(2, 32, documents)
        (_, expected), (_, got) = gradients(plain, data), gradients(compiled, data)
        assert plain.after_optimizer_step() == compiled.after_optimizer_step()
        compiled_graphs.append(counter.frame_count)
        for path in expected:
            torch.testing.assert_close(got[path], expected[path], atol=1e-6, rtol=1e-4)
    assert compiled_graphs[0] == compiled_graphs[1] <= 4


# -- decoding ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cuts", [(1,) * 20, (7, 1, 12), (20,)], ids=["one by one", "uneven", "at once"])
def test_step_equals_forward(cuts):
    model = build_hymo(tiny()).eval()
    tokens = batch(2, 20).inputs
    state, outputs, begin = model.initial_state(2), [], 0
    for length in cuts:
        logits, state = model.step(tokens[:, begin : begin + length], state)
        outputs.append(logits)
        begin += length
    torch.testing.assert_close(torch.cat(outputs, dim=1), model(tokens).detach(), atol=2e-5, rtol=1e-4)


def test_left_padded_prompts_decode_greedily_as_if_alone():
    model = build_hymo(tiny()).eval()
    prompts = [batch(1, length).inputs for length in (9, 4, 1)]

    def alone(tokens):
        for _ in range(5):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
        return tokens[0, -5:].tolist()

    padded = torch.cat([torch.nn.functional.pad(prompt, (9 - prompt.shape[1], 0)) for prompt in prompts])
    documents = torch.stack([torch.tensor([-1] * (9 - prompt.shape[1]) + [0] * prompt.shape[1]) for prompt in prompts])
    logits, state = model.step(padded, model.initial_state(3), documents)
    chosen = [logits[:, -1:].argmax(-1)]
    for _ in range(4):
        logits, state = model.step(chosen[-1], state, torch.zeros(3, 1, dtype=documents.dtype))
        chosen.append(logits.argmax(-1))
    assert torch.cat(chosen, dim=1).tolist() == [alone(prompt) for prompt in prompts]


# -- initialisation ---------------------------------------------------------------------------------------------------------------
def named(model):
    return {model.logical_names[path]: p for path, p in model.named_parameters()}


def test_logical_names():
    names = build_hymo(tiny(), device="meta").logical_names
    assert names["layers.4.mixer.wq_a.weight"] == "M1.mixer.wq_a.weight"
    assert names["layers.7.mixer.in_proj.weight"] == "G5.mixer.in_proj.weight"
    assert names["embedding.weight"] == "embedding.weight"
    assert len(set(names.values())) == len(names)


def test_changing_one_block_leaves_the_others_bit_equal():
    base, changed = named(build_hymo(tiny())), named(build_hymo(tiny("model.layers.M.ffn={type: dense_ffn, inter_dim: 48}")))
    others = [name for name in base if ".ffn." not in name]
    assert others == [name for name in changed if ".ffn." not in name]
    assert all(torch.equal(base[name], changed[name]) for name in others)


def test_swapped_layers_take_their_weights_with_them():
    base, swapped = build_hymo(tiny()), build_hymo(tiny("model.swap=[[0, 1]]"))
    assert torch.equal(base.layers[0].mixer.wq_a.weight, swapped.layers[1].mixer.wq_a.weight)
    assert torch.equal(base.layers[1].mixer.in_proj.weight, swapped.layers[0].mixer.in_proj.weight)


def test_seeds():
    first, again, other = (build_hymo(tiny(), seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_embedding_has_standard_deviation_d_to_the_minus_half():
    assert build_hymo(tiny()).embedding.weight.std().item() == pytest.approx(32**-0.5, rel=0.05)


def test_masters_are_fp32_and_meta_allocates_nothing():
    assert {p.dtype for p in build_hymo(tiny()).parameters()} == {torch.float32}
    full = build_hymo(load_recipe("v1_0"), device="meta")
    assert all(t.is_meta for t in [*full.parameters(), *full.buffers()])
