import math

import pytest
import torch

from hymo.errors import ProbeError
from hymo.probes.base import open_probe


def test_the_gap_by_hand(subject):
    """From the logits of one row (x x), token by token."""
    s, found = 16, open_probe("induction", {"segments": 3}).measure(subject)
    first, second = [], []
    with torch.no_grad():
        for x in subject.stretches(3, s):
            row = torch.cat([x, x])
            losses = -torch.log_softmax(subject.model.eval()(row[None, :-1])[0], dim=-1)
            first += [losses[t, x[t + 1]].item() for t in range(s - 1)]
            second += [losses[s + t, x[t + 1]].item() for t in range(s - 1)]
    assert found.axes == (("repeated", [8, 16, 32]),)
    assert found.cells[1] == pytest.approx(sum(first) / len(first) - sum(second) / len(second), abs=1e-4)
    assert found.summary == {"gap": found.cells[-1]}


def test_a_model_that_copies_gains_the_whole_loss(subject, oracle):
    """Right on the second time only: ln(257 − 1 + e^5) − 5 against ln(256 + e^5), that is 5 nats."""
    rows = [x.tolist() for x in subject.stretches(3, 32)]
    oracle(subject, lambda row: next((x[len(row) - 32] for x in rows if len(row) > 32 and row[:32] == x), 256))
    found = open_probe("induction", {"segments": 3}).measure(subject)
    nothing = math.log(256 + math.exp(5))
    assert nothing - (nothing - 5) == pytest.approx(5)
    assert found.cells[-1] == pytest.approx(5.0, abs=1e-5)


def test_a_task_has_no_text(task_recipe):
    with pytest.raises(ProbeError, match="needs a run on text"):
        open_probe("induction").check(task_recipe)
