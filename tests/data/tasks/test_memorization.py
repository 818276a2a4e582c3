import pytest

from hymo.data.synthetic import IGNORED
from hymo.errors import DataError


def test_format_and_counts(draw):
    tokens, targets = draw("memorization")
    assert (tokens.shape, targets.shape) == ((64, 33), (64, 32))
    assert (tokens[:, 1::2] == 255).all()
    assert (targets[:, 0::2] == IGNORED).all()
    assert tokens[:, 0:-1:2].max() < 127
    assert 127 <= targets[:, 1::2].min() <= targets[:, 1::2].max() < 255


def test_the_map_is_one_for_all_and_the_published_one(draw):
    pairs = {(int(k), int(v)) for split in ("train", "validation") for seed in (0, 1) for x, y in [draw("memorization", split=split, seed=seed)]
             for k, v in zip(x[:, 0:-1:2].flat, y[:, 1::2].flat, strict=True)}
    assert len(pairs) == len({k for k, _ in pairs}) == len({v for _, v in pairs}) == 127
    # shuffling the lists 0…126 and 127…254 in turn from numpy's default_rng(12345), as the published map is made
    assert [v for _, v in sorted(pairs)[:8]] == [239, 241, 146, 166, 182, 213, 142, 235]
    assert draw("memorization", map_seed=1)[1].tolist() != draw("memorization")[1].tolist()


def test_an_odd_row_is_refused(draw):
    with pytest.raises(DataError, match="which is odd"):
        draw("memorization", length=31)
