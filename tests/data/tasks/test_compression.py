import numpy as np
import pytest

from hymo.data.synthetic import IGNORED
from hymo.errors import DataError


def test_format_and_counts(draw):
    tokens, targets = draw("compression", seq_len=64)
    assert (tokens.shape, targets.shape) == ((64, 65), (64, 64))
    assert (tokens[:, 31:] == 15).all()
    assert set(np.unique(tokens[:, :31])) == set(range(15))
    assert (targets[:, :32] == IGNORED).all()
    assert np.array_equal(targets[:, 32:], tokens[:, :32]), "position 32+j is asked for token j, the mark included"


def test_a_row_needs_room_for_the_answer(draw):
    with pytest.raises(DataError, match=r"train\.seq_len must be at least 64 for this task, but got 32"):
        draw("compression", seq_len=32)
