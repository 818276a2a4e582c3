"""One step against its formula: the gradient of a step is that of all its rows' labels together, weights and all."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from hymo.block import Context
from hymo.data import Batch, Data
from hymo.recipe import Recipe
from hymo.train import moment
from hymo.train.parallel import World
from hymo.train.session import Session
from hymo.train.step import Pending

Tiny = Callable[..., Recipe]
CPU = World(torch.device("cpu"))


def test_gradient_is_that_of_the_formula(tiny: Tiny, opened: Data) -> None:
    """By autograd on the materialised logits of the main head and each extra one, with capacity off so that rows do not meet."""
    recipe = tiny("train.micro_batch=1", "model.layers.M.ffn.capacity_factor=null", "model.layers.M.ffn.balance=aux_loss")
    session = Session(recipe, opened, CPU)
    model, batch = session.model, opened.train().take(4)
    counts = torch.tensor([float((batch.labels(k) != -100).sum()) for k in range(3)])
    assert len({int((batch.rows(i, i + 1).labels() != -100).sum()) for i in range(4)}) > 1, "rows of different label counts"
    totals = session.stepper.backward(batch, counts)
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    losses = model.loss(batch)      # for the balance loss alone
    expected = sum(losses.aux.values(), torch.zeros(()))
    logits, hidden = model.forward_with_hidden(batch.inputs, batch.input_documents)
    context = Context.for_tokens((4, 32), "cpu", batch.input_documents)
    cap = model.config.softcap
    heads = [cap * torch.tanh(h @ model.head_weight.T / cap) for h in model.mtp(hidden, batch.inputs, model.embedding, context)]
    for weight, head, k in ((1.0, logits, 0), (0.3, heads[0], 1), (0.1, heads[1], 2)):
        expected = expected + weight * F.cross_entropy(head.flatten(0, 1), batch.labels(k).flatten(), ignore_index=-100)
    expected.backward()
    assert float(totals["loss/total"]) == pytest.approx(expected.item(), rel=1e-5)
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")
    session.feed.close()


def test_a_step_without_a_single_label_is_no_division_by_zero(tiny: Tiny, opened: Data) -> None:
    session = Session(tiny(), opened, CPU)
    batch = opened.train().take(4)
    empty = Batch(batch.tokens, torch.full_like(batch.documents, -1))
    totals = session.stepper.backward(empty, torch.zeros(3))
    assert float(totals["loss/main"]) == 0.0
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in session.model.parameters())
    session.feed.close()


def test_a_step_is_timed_by_its_own_end_not_by_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU two steps are read in one go before a validation: each keeps its own duration."""
    ends = iter([10.0, 13.0, 15.0])
    monkeypatch.setattr("hymo.train.moment.time.perf_counter", lambda: next(ends))
    begin = moment.now(torch.device("cpu"))
    first, second = (Pending({"x": torch.tensor(x)}, {}) for x in (1.0, 2.0))
    assert [first.read()["x"], second.read()["x"]] == [1.0, 2.0]
    assert [moment.seconds(begin, first.done), moment.seconds(first.done, second.done)] == [3.0, 2.0]
