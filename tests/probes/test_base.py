import math

import pytest
import torch

from hymo.errors import ProbeError
from hymo.model import build_hymo
from hymo.probes.base import LOGITS, Finding, Probe, Subject, names, open_probe, planned, probe
from hymo.recipe import load_recipe


def test_answers_are_those_of_the_whole_logits(subject, monkeypatch):
    tokens = torch.randint(257, (5, 20), generator=torch.Generator().manual_seed(0))
    targets = torch.randint(257, (5, 20), generator=torch.Generator().manual_seed(1))
    targets[torch.rand(5, 20, generator=torch.Generator().manual_seed(2)) < 0.7] = -100
    with torch.no_grad():
        logits = subject.model.eval()(tokens)
    targets[0, 0] = logits[0, 0].argmax()
    asked = targets != -100
    losses = torch.nn.functional.cross_entropy(logits[asked], targets[asked], reduction="none")
    subject.model.train()
    for budget in (LOGITS, 1):      # all rows at once, then row by row
        monkeypatch.setattr("hymo.probes.base.LOGITS", budget)
        hits, nats = subject.answers(tokens, targets)
        assert hits[0]
        assert torch.equal(hits, logits[asked].argmax(-1) == targets[asked])
        torch.testing.assert_close(nats, losses.double(), atol=1e-5, rtol=1e-5)
    assert subject.model.training, "the mode is given back"


def test_text_is_the_runs_own_held_out_tokens(subject):
    expected = [t for batch in subject.data.validation(7) for row, own in zip(batch.inputs, batch.input_documents, strict=True)
                for t in row[own >= 0].tolist()]
    assert subject.text.tolist() == expected
    assert len(expected) == 4096
    found = subject.stretches(3, 96)
    assert [row.tolist() for row in found] == [expected[at : at + 96] for at in (0, 2000, 4000)]
    with pytest.raises(ProbeError, match="must read 5,000 held-out tokens, but got 4,096"):
        subject.stretches(1, 5000)


def test_words_are_the_tokens_of_text(subject, task_recipe):
    assert subject.words().tolist() == list(range(256)), "256 is <|endoftext|>"
    assert Subject(build_hymo(task_recipe), task_recipe).words().tolist() == list(range(128))


def test_metrics_are_named_by_probe_axis_and_label():
    found = Finding("needle", {"gain": 2.5}, "nats", (("depth", [0, 50]), ("length", [32, 64])), [1.0, 2.0, 3.0, 4.0], "")
    assert found.metrics == {
        "probe/needle/depth0_length32": 1.0, "probe/needle/depth0_length64": 2.0,
        "probe/needle/depth50_length32": 3.0, "probe/needle/depth50_length64": 4.0, "probe/needle/gain": 2.5,
    }  # fmt: skip


def test_every_probe_is_registered_under_its_file():
    assert names() == ["bits", "induction", "length", "mqar", "needle", "position", "task"]
    for name in names():
        assert type(open_probe(name)).__module__ == f"hymo.probes.{name}"
        assert type(open_probe(name)).__doc__
        assert all(field.description for field in type(open_probe(name)).model_fields.values())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mqr", {}, "must be one of hymo's, but got 'mqr'; did you mean 'mqar'"),
        ("mqar", {"example": 3}, "setting 'example' of probe 'mqar': .*, but got 3; did you mean 'examples'"),
        ("mqar", {"examples": 0}, "setting 'examples' of probe 'mqar': .*, but got 0"),
    ],
)
def test_unknown_names_and_settings(name, options, message):
    with pytest.raises(ProbeError, match=message):
        open_probe(name, options)


def test_a_name_is_given_once():
    with pytest.raises(ProbeError, match="'mqar' is registered twice"):
        @probe("mqar")
        class Other(Probe):
            def measure(self, subject):
                return {}


def test_planned_probes_are_checked_before_training(text_recipe):
    assert [each.name for each in planned(load_recipe("mqar", ["eval.probes=[mqar, task]"], scale="tiny"))] == ["mqar", "task"]
    wrong = text_recipe.model_copy(update={"eval": text_recipe.eval.model_copy(update={"probes": ["task"]})})
    with pytest.raises(ProbeError, match=r"needs a run on a synthetic task, but got data\.source=builtin"):
        planned(wrong)


def test_nothing_is_learnt_is_ln_vocab(subject):
    """An untrained model's nats are near ln(257), whatever is asked."""
    tokens = torch.randint(257, (8, 32), generator=torch.Generator().manual_seed(0))
    _, nats = subject.answers(tokens, tokens.roll(1, dims=1))
    assert nats.mean().item() == pytest.approx(math.log(257) + 0.5, abs=0.5)
