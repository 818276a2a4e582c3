"""The format by hand, from the published generator's description; the distributions by counting."""

import numpy as np
import pytest

from hymo.data.synthetic import IGNORED, open_task
from hymo.errors import DataError


@pytest.mark.parametrize(("seq_len", "pairs"), [(64, 4), (128, 8), (256, 64), (1024, 256)])
def test_format_token_by_token(draw, seq_len, pairs):
    tokens, targets = draw("mqar", seq_len=seq_len, num_kv_pairs=pairs, random_non_queries=False)
    assert tokens.shape == (64, seq_len + 1)
    assert targets.shape == (64, seq_len)
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        keys, values = row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2]
        assert all(1 <= key <= 4095 for key in keys)
        assert all(4096 <= value <= 8191 for value in values)
        assert len(set(keys)) == len(set(values)) == pairs
        memory = dict(zip(keys, values, strict=True))
        expected = [IGNORED] * seq_len
        for t in range(2 * pairs, seq_len):
            if row[t]:
                assert (t - 2 * pairs) % 2 == 0, "a query opens a slot of two tokens"
                expected[t] = memory.pop(row[t])
        assert not memory, "every key is asked for, once"
        assert target == expected
        assert row[seq_len] == 0


def test_fillers_come_from_the_whole_vocabulary(draw):
    tokens, targets = draw("mqar", rows=400, seq_len=64, vocab=66)
    queries = np.zeros_like(tokens, dtype=bool)
    queries[:, :-1] = targets != IGNORED
    filler = tokens[:, 8:][~queries[:, 8:]]
    assert filler.size == 400 * (57 - 4)
    counts = np.bincount(filler, minlength=66)
    expected = filler.size / 66
    assert (np.abs(counts - expected) < 6 * expected**0.5).all()


@pytest.mark.parametrize("a", [0.01, 1.0])
def test_gaps_follow_the_power_law(draw, a):
    """One query over 30 slots: p(g) = (g+1)^(a−1) / Σ. With a = 0.01, 25 % fall into the first slot; evenly, 3.3 %."""
    _, targets = draw("mqar", rows=8000, seq_len=62, vocab=64, num_kv_pairs=1, power_a=a)
    found = np.bincount(((targets != IGNORED).argmax(axis=1) - 2) // 2, minlength=30) / 8000
    p = np.arange(1, 31) ** (a - 1.0)
    p /= p.sum()
    assert p[0] == pytest.approx({0.01: 0.2474, 1.0: 1 / 30}[a], abs=1e-3)
    assert (np.abs(found - p) < 5 * np.sqrt(p * (1 - p) / 8000)).all()


def test_slots_are_drawn_one_after_another(draw):
    """Two queries over two slots: the first key lies in slot 0 with p_0 = 1/(1 + 2^−0.99), the second in the other one."""
    tokens, _ = draw("mqar", rows=8000, seq_len=8, vocab=64, num_kv_pairs=2, random_non_queries=False)
    first = (tokens[:, 4] == tokens[:, 0]).mean()
    p = 1 / (1 + 2**-0.99)
    assert abs(first - p) < 5 * (p * (1 - p) / 8000) ** 0.5


def test_segments_are_mixed_by_weight(draw):
    rng, mixed = np.random.default_rng(0), open_task("mqar", {"segments": [(64, 4, 5), (128, 8, 1), (256, 16, 1)]})
    shapes = [mixed.sample(rng, 1, 256, "train")[1].shape[1] for _ in range(400)]
    share = np.mean(np.array(shapes) == 64)
    assert set(shapes) == {64, 128, 256}
    assert abs(share - 5 / 7) < 5 * (5 / 7 * 2 / 7 / 400) ** 0.5
    assert (draw("mqar", seq_len=256, segments=[(128, 32, 1)])[1] != IGNORED).sum(axis=1).tolist() == [32] * 64


@pytest.mark.parametrize(
    ("options", "seq_len", "message"),
    [
        ({}, 63, "even number of tokens, but got T=63"),
        ({"vocab": 64}, 64, "more tokens in its vocabulary than in a row, but got vocab=64 and T=64"),
        ({"num_kv_pairs": 17}, 64, "4 tokens of a row for each pair, but got 17 pairs and T=64"),
        ({"segments": [(128, 8, 1)]}, 64, "train.seq_len must be at least 128 for this task, but got 64"),
        ({"segments": [(64, 4, 0)]}, 64, r"weights of mqar.segments must be positive, but got \[0.0\]"),
    ],
)
def test_what_cannot_be_is_refused(draw, options, seq_len, message):
    with pytest.raises(DataError, match=message):
        draw("mqar", seq_len=seq_len, **options)
