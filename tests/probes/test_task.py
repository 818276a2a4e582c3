import pytest

from hymo.model import build_hymo
from hymo.probes.base import Subject, open_probe
from hymo.recipe import load_recipe


def test_accuracy_and_where_it_is_lost(oracle):
    recipe = load_recipe("mad", [
        "data.source=synthetic:copy", "data.options.length=16", "model.vocab_size=65",
        "train.seq_len=64", "train.tokens_per_step=64", "eval.tokens=6400",
    ], scale="mini")  # fmt: skip
    subject = Subject(build_hymo(recipe), recipe)
    oracle(subject, lambda row: row[len(row) - 17] if len(row) < 25 else 64)       # right for the first 8 of 16 symbols, which lie at 17 … 24
    found = open_probe("task").measure(subject)
    assert found.summary == {"accuracy": 0.5}
    assert found.axes == (("position", [16, 32]),)
    assert found.cells == [pytest.approx(8 / 15), 0.0]
    assert "100 held-out rows" in found.setting
