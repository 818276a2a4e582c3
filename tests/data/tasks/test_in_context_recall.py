import numpy as np
import pytest

from hymo.data.synthetic import IGNORED
from hymo.errors import DataError


def test_every_known_value_is_asked_for(draw, asked):
    tokens, targets = draw("in_context_recall")
    assert (tokens.shape, targets.shape) == ((64, 128), (64, 127))
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        expected = asked(row, range(8), range(8, 16))
        assert target == expected[1:], "the value is asked for at its key"
        assert target[-1] == row[-1] != IGNORED
    # 64 pairs over 8 keys: 8·(1 − (7/8)^63) first showings in the 63, so 64 − 8·(1 − (7/8)^63) are asked for
    assert (targets != IGNORED).sum(axis=1).mean() == pytest.approx(64 - 8 * (1 - (7 / 8) ** 63), abs=0.2)


def test_training_asks_for_the_next_token_everywhere(draw):
    tokens, targets = draw("in_context_recall", split="train")
    assert np.array_equal(targets, tokens[:, 1:])
    assert np.array_equal(tokens, draw("in_context_recall")[0])


def test_one_query_after_the_mark(draw, asked):
    tokens, targets = draw("in_context_recall", multi_query=False)
    assert (tokens.shape, targets.shape) == ((64, 129), (64, 128))
    assert (tokens[:, -3] == 15).all()
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        expected = asked(row, range(7), range(7, 15), mark=15)
        assert target == [IGNORED] * 127 + [expected[-1]]
        assert expected[-1] == row[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_vocab": 16}, "a key and a value at least"),        # what the published generator does by itself at a vocabulary of 16
        ({"frac_noise": 0.2}, "noise needs tokens of its own"),
        ({"length": 7}, "even number of tokens"),
        ({"length": 256}, "train.seq_len must be at least 255 for this task, but got 128"),
    ],
)
def test_what_cannot_be_is_refused(draw, options, message):
    with pytest.raises(DataError, match=message):
        draw("in_context_recall", **options)
