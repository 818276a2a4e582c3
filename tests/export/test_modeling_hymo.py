"""The modelling file used from hymo itself; tests/export/test_export.py has it loaded from an exported folder."""

import pytest
import torch

from hymo.export.modeling_hymo import HymoConfig, HymoForCausalLM
from tests.made import tiny


@pytest.fixture(scope="module")
def model():
    return HymoForCausalLM(HymoConfig(hymo=tiny().model.model_dump(mode="json"))).eval()


TOKENS = torch.tensor([[5, 6, 7, 8, 9], [7, 8, 9, 1, 1]])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_is_not_seen(model, side):
    alone = model(TOKENS[1:, :3]).logits[0]
    padding = torch.tensor([[1, 1]])
    row = torch.cat([padding, TOKENS[1:, :3]] if side == "left" else [TOKENS[1:, :3], padding], dim=1)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1] if side == "left" else [1, 1, 1, 0, 0]])
    logits = model(torch.cat([TOKENS[:1], row]), attention_mask=mask).logits
    torch.testing.assert_close(logits[1][mask[1].bool()], alone, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(logits[0], model(TOKENS[:1]).logits[0], atol=2e-5, rtol=1e-4)


def test_a_state_goes_on_where_it_stopped(model):
    whole = model(TOKENS).logits
    first = model(TOKENS[:, :3], use_cache=True)
    rest = model(TOKENS[:, 3:], state=first.state)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), whole, atol=2e-5, rtol=1e-4)


def test_labels_that_count_nowhere(model):
    labels = TOKENS.clone()
    labels[0, 2] = -100
    logits = model(TOKENS).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    torch.testing.assert_close(model(TOKENS, labels=labels).loss, expected)


def test_it_trains_like_any_model_of_transformers(model):
    model.train()
    model(TOKENS, labels=TOKENS).loss.backward()
    model.eval()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0
    model.zero_grad()


def test_parts_of_the_output(model):
    assert model(TOKENS, logits_to_keep=2).logits.shape == (2, 2, 257)
    [logits] = model(TOKENS, return_dict=False)
    assert torch.equal(logits, model(TOKENS).logits)
