import itertools

import numpy as np
import pytest

from hymo.data.synthetic import IGNORED
from hymo.errors import DataError


def pairs(row, pad):
    """The motifs of a row: keys are runs of tokens 0…6, values of 7…14."""
    groups = [(value, tuple(run)) for value, run in itertools.groupby((t for t in row if t != pad), key=lambda t: t >= 7)]
    return list(zip([run for value, run in groups if not value], [run for value, run in groups if value], strict=True))


def test_held_out_rows_by_reading_them(draw):
    tokens, targets = draw("fuzzy_recall")
    assert (tokens.shape, targets.shape) == ((64, 129), (64, 128))
    unanswerable = 0
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        found = pairs(row, 15)
        pads = 129 - sum(len(k) + len(v) for k, v in found)
        assert row[:pads] == [15] * pads, "the pads come first"
        assert 1 <= pads <= 12
        memory, expected = {}, [IGNORED] * pads
        for k, v in found[:-1]:
            assert len(k) == len(set(k)) == 3
            assert len(v) == len(set(v)) <= 3
            expected += [IGNORED] * 3 + (list(v) if k in memory else [IGNORED] * len(v))
            assert memory.setdefault(k, v) == v
        k, v = found[-1]
        unanswerable += k not in memory
        assert memory.get(k, v) == v
        assert target == (expected + [IGNORED] * 3 + list(v))[1:], "the last value is always asked for"
    assert unanswerable <= 7, "2.5 % are expected"


def test_training_rows_have_keys_of_every_size(draw):
    tokens, targets = draw("fuzzy_recall", split="train")
    assert np.array_equal(targets, tokens[:, 1:])
    sizes = np.bincount([len(k) for row in tokens.tolist() for k, _ in pairs(row, 15)])
    assert sizes.shape == (4,)
    assert (np.abs(sizes[1:] / sizes.sum() - 1 / 3) < 0.05).all()


def test_every_arrangement_is_as_likely(draw):
    """Held-out keys are 3 of 7 tokens in order: 210 of them, drawn evenly."""
    tokens, _ = draw("fuzzy_recall", rows=400)
    counts = {}
    for row in tokens.tolist():
        for k, _ in pairs(row, 15)[:-1]:
            counts[k] = counts.get(k, 0) + 1
    assert len(counts) == 210
    mean = np.mean(list(counts.values()))
    assert max(abs(count - mean) for count in counts.values()) < 6 * mean**0.5


def test_one_query_after_the_mark(draw):
    tokens, targets = draw("fuzzy_recall", multi_query=False, k_motif=1, v_motif=2)
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        at = row.index(15)
        assert row.count(15) == 1
        key, value = row[at + 1], row[at + 2 :]
        assert key < 7 <= min(value)
        assert target == [IGNORED] * (128 - len(value)) + value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab": 6}, "as many tokens to draw from"),
        ({"length": 12}, "two of the largest pairs"),
        ({"length": 256}, "train.seq_len must be at least 256 for this task, but got 128"),
    ],
)
def test_what_cannot_be_is_refused(draw, options, message):
    with pytest.raises(DataError, match=message):
        draw("fuzzy_recall", **options)
