import numpy as np
import pytest

from hymo.data.synthetic import IGNORED
from hymo.errors import DataError


def test_format_and_counts(draw):
    tokens, targets = draw("selective_copying", seq_len=256)
    assert (tokens.shape, targets.shape) == ((64, 257), (64, 256))
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        words = [t for t in row[:239] if t != 14]
        assert len(words) == 16
        assert max(words) < 14
        assert row[238] < 14, "no blank comes after the last symbol"
        assert row[239:] == [15] + [14] * 17
        assert row[:239].count(14) == 223
        assert target == [IGNORED] * 240 + words


def test_blanks_fall_evenly_before_the_symbols(draw):
    tokens, _ = draw("selective_copying", seq_len=256, rows=500, length=13, num_tokens_to_copy=4)
    gaps = np.array([np.diff([-1, *np.flatnonzero(row[:8] < 14)]) - 1 for row in tokens])
    assert gaps.sum(axis=1).tolist() == [4] * 500
    assert (np.abs(gaps.mean(axis=0) - 1) < 5 * (4 * 0.25 * 0.75 / 500) ** 0.5).all()


def test_what_cannot_be_is_refused(draw):
    with pytest.raises(DataError, match=r"longer than 2 num_tokens_to_copy"):
        draw("selective_copying", seq_len=256, length=33)
    with pytest.raises(DataError, match=r"train\.seq_len must be at least 256 for this task, but got 128"):
        draw("selective_copying", seq_len=128)
