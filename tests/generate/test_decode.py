"""Every registered mixer decodes what the full forward pass says: a new one is tested as soon as it is registered."""

import copy

import pytest
import torch
from torch.utils._pytree import tree_leaves

from hymo.cost import count_model
from hymo.generate.decode import Decoder, keep_products_in, padded
from hymo.registry import names
from tests.made import model_of, tiny

PROMPTS = [[(7 * i * i + 5) % 251 for i in range(35)], [7, 7, 100], [256]]


@pytest.fixture(scope="module", params=names("mixer"))
def model(request):
    """Three layers of one mixer at its default settings, one of them with experts."""
    mixer = f"{{type: {request.param}}}"
    return model_of(tiny("model.pattern=GMG", f"model.layers.M.mixer={mixer}", f"model.layers.G.mixer={mixer}"))


def greedy(model, prompt, steps):
    """The full forward pass on everything so far, again for each token."""
    tokens = torch.tensor([prompt])
    for _ in range(steps):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
    return tokens[0, len(prompt) :].tolist()


def decoded(model, prompts, steps):
    decoder = Decoder(model, prompts)
    logits, found = decoder.read(), []
    for _ in range(steps):
        found.append(logits.argmax(-1))
        logits = decoder.step(found[-1])
    return torch.stack(found, dim=1).tolist(), decoder


def test_greedy_is_the_full_forward_token_for_token(model):
    """Prompts of different lengths in one batch; the last is a single token."""
    found, _ = decoded(model, PROMPTS, 6)
    assert found == [greedy(model, prompt, 6) for prompt in PROMPTS]
    assert len({token for row in found for token in row}) > 1, "a model that repeats one token would pass whatever it does"


@pytest.mark.parametrize("cut", [1, 3, 34])
def test_wherever_the_prompt_is_cut(model, cut, monkeypatch):
    """The cache is split after every `cut` tokens."""
    expected = Decoder(model, PROMPTS).read()
    monkeypatch.setattr("hymo.generate.decode.CHUNK_TOKENS", cut * len(PROMPTS))
    torch.testing.assert_close(Decoder(model, PROMPTS).read(), expected, atol=2e-5, rtol=1e-4)


def test_in_reserved_room_too(model):
    """Nothing is moved and no shape changes: what a GPU records once and replays."""
    decoder = Decoder(model, PROMPTS, room=6)
    logits, found = decoder.read(), []
    decoder.reserve()
    assert decoder.advance is not None
    places = [leaf.data_ptr() for leaf in tree_leaves(decoder.state.layers)]
    for _ in range(6):
        found.append(logits.argmax(-1))
        logits = decoder.step(found[-1])
    assert torch.stack(found, dim=1).tolist() == [greedy(model, prompt, 6) for prompt in PROMPTS]
    assert [leaf.data_ptr() for leaf in tree_leaves(decoder.state.layers)] == places
    length = max(map(len, PROMPTS)) + 6
    held = sum(leaf.untyped_storage().nbytes() for leaf in tree_leaves(decoder.state.layers))
    cost = count_model(model, context=length, dtype=torch.float32)
    assert held == len(PROMPTS) * (cost.kv_bytes + cost.state_bytes), "full, it is what count-params says"


def test_a_window_decodes_without_reserved_room():
    model = model_of(tiny("model.pattern=GMG", "model.layers.M.mixer={type: attention, window: 4}"))
    decoder = Decoder(model, PROMPTS, room=6)
    logits = decoder.read()
    decoder.reserve()
    assert decoder.advance is None
    assert decoder.step(logits.argmax(-1)).shape == (3, 257)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_state_weighs_what_count_params_says(model, dtype):
    decoder = Decoder(copy.deepcopy(model), [[1, 2, 3, 4]] * 3, dtype)
    decoder.step(decoder.read().argmax(-1))
    held = sum(leaf.untyped_storage().nbytes() for leaf in tree_leaves(decoder.state.layers) if isinstance(leaf, torch.Tensor))
    cost = count_model(model, context=5, dtype=dtype)
    assert held == 3 * (cost.kv_bytes + cost.state_bytes)


def test_prompts_end_together():
    tokens, documents = padded([[1, 2, 3], [4]], torch.device("cpu"))
    assert tokens.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert documents.tolist() == [[0, 0, 0], [-1, -1, 0]]
    assert padded([[1, 2], [3, 4]], torch.device("cpu"))[1] is None


def test_weights_kept_in_bf16_give_what_autocast_gives():
    tokens = torch.tensor([PROMPTS[0]])
    model = model_of(tiny())
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = model(tokens)
        keep_products_in(model, torch.bfloat16)
        first, again = model(tokens), model(tokens)
    assert torch.equal(first, expected)
    assert torch.equal(again, expected)
    kept = {path for path, weight in model.named_parameters() if weight.dtype == torch.bfloat16}
    assert {"layers.0.mixer.wq_a.weight", "layers.0.ffn.w_down.weight", "layers.1.mixer.in_proj.weight"} <= kept
    assert not kept & {"embedding.weight", "layers.0.ffn.gate.weight", "layers.1.mixer.A_log", "layers.1.mixer.conv.weight"}
