import numpy as np
import pytest

from hymo.data.synthetic import IGNORED, open_task


def test_a_fifth_of_the_pairs_is_noise(draw, asked):
    tokens, targets = draw("noisy_recall", rows=256)
    noise = tokens >= 16
    assert np.array_equal(noise[:, 0::2], noise[:, 1::2]), "noise comes in pairs"
    assert not noise[:, -2:].any()
    assert noise[:, :-2].mean() == pytest.approx(0.2 * 62 / 63, abs=0.01)       # one pair before the last is never noise
    assert set(np.unique(tokens[noise])) == set(range(16, 32))
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        assert target == asked(row, range(8), range(8, 16))[1:]


@pytest.mark.parametrize("frac_noise", [0.8, 0.999])
def test_something_is_always_asked_for(draw, frac_noise):
    tokens, targets = draw("noisy_recall", frac_noise=frac_noise)
    assert ((tokens[:, 0:-2:2] < 8).sum(axis=1) >= 1).all()
    assert (targets[:, -1] == tokens[:, -1]).all()
    assert (targets[:, -1] != IGNORED).all()


def test_it_is_a_task_of_its_own():
    assert open_task("noisy_recall", {}).vocab_size == 32
    assert open_task("in_context_recall", {}).vocab_size == 16
