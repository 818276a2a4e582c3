import numpy as np
import torch

from hymo.data.synthetic import SyntheticRows, open_task


def test_copy_by_its_definition():
    batch = SyntheticRows(open_task("copy", {"length": 3, "symbols": 5}), 8, "train", seed=0)(np.arange(100))
    assert batch.tokens.shape == (100, 9)
    word, mark, copied, rest = batch.tokens.split([3, 1, 3, 2], dim=1)
    assert torch.equal(word, copied)
    assert (mark == 5).all()
    assert set(word.flatten().tolist()) == set(range(5))
    assert (batch.documents[:, :7] == 0).all()
    assert (batch.documents[:, 7:] == -1).all()
    labels = batch.labels()
    assert torch.equal(labels[:, 3:6], word)        # the mark asks for the first symbol
    assert (labels[:, [0, 1, 2, 6, 7]] == -100).all()
    assert len({tuple(w) for w in word.tolist()}) > 50
    assert rest.shape == (100, 2)
