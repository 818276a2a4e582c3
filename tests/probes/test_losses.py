"""The probes that read losses: bits, position and length say what hymo/evaluate.py finds, whose figures have tests of their own."""

import pytest

from hymo.data import open_data
from hymo.errors import ProbeError
from hymo.evaluate import evaluate
from hymo.probes.base import open_probe
from hymo.probes.bits import BitsProbe
from hymo.probes.length import LengthProbe, at_times_the_length
from hymo.probes.position import PositionProbe


@pytest.fixture
def found(subject):
    return evaluate(subject.model, subject.data, subject.recipe)


def test_bits(subject, found):
    assert open_probe("bits").measure(subject).cells == [found.bpb, found.loss]
    assert isinstance(open_probe("bits"), BitsProbe)


def test_position(subject, found):
    seen = open_probe("position").measure(subject)
    assert isinstance(open_probe("position"), PositionProbe)
    assert dict(zip(seen.axes[0][1], seen.cells, strict=True)) == found.loss_by_position
    assert seen.summary["late_minus_early"] == found.loss_by_position[64] - found.loss_by_position[1]


def test_length(subject, found):
    seen = open_probe("length").measure(subject)
    assert isinstance(open_probe("length"), LengthProbe)
    assert seen.axes == (("length", [64, 128, 256]),)
    longer = at_times_the_length(subject.recipe, 4)
    assert longer.train.seq_len == 256
    assert seen.cells[0] == found.loss
    assert seen.cells[2] == evaluate(subject.model, open_data(longer), longer).loss
    assert set(seen.summary) == {"loss_1x", "loss_2x", "loss_4x"}


def test_what_does_not_fit_is_refused(text_recipe, task_recipe):
    with pytest.raises(ProbeError, match="at most 4 times the trained length, 256 tokens, but got rows of 512"):
        open_probe("length", {"factors": [1, 8]}).check(text_recipe)
    for name in ("bits", "length"):
        with pytest.raises(ProbeError, match=r"needs a run on text, but got data\.source=synthetic:mqar"):
            open_probe(name).check(task_recipe)
