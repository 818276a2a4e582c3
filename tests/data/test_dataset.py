from pathlib import Path

import pytest
import torch

from hymo.data import open_data
from hymo.errors import DataError


def test_validation_is_the_same_tokens_however_it_is_cut(recipe, corpus: Path):
    r = recipe(source=str(corpus), validation_frac=0.5, eval_tokens=160)
    data = open_data(r)
    once = next(iter(data.validation(100)))
    assert len(once) == 10                                             # eval.tokens / seq_len rows
    for rows in (1, 3, 4, 10):
        batches = list(data.validation(rows))
        assert all(len(b) == len(batches[0]) <= rows for b in batches)
        tokens = torch.cat([b.tokens for b in batches])
        documents = torch.cat([b.documents for b in batches])
        assert torch.equal(tokens[:10], once.tokens)
        assert torch.equal(documents[:10], once.documents)
        assert (documents[10:] == -1).all()
    other_seed = open_data(recipe(source=str(corpus), validation_frac=0.5, eval_tokens=160, seed=9))
    assert torch.equal(next(iter(other_seed.validation(100))).tokens, once.tokens)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_share_the_validation_rows_in_equal_shapes(recipe, corpus: Path, world: int):
    r = recipe(source=str(corpus), validation_frac=0.5, eval_tokens=176)
    whole = torch.cat([b.tokens[b.documents[:, 0] != -1] for b in open_data(r).validation(4)])
    ranks = [list(open_data(r, rank, world).validation(4)) for rank in range(world)]
    assert len({tuple(b.tokens.shape for b in batches) for batches in ranks}) == 1
    read = torch.cat([b.tokens[b.documents[:, 0] != -1] for batches in ranks for b in batches])
    assert sorted(read.tolist()) == sorted(whole.tolist())
    assert all(b.labels()[b.documents[:, 0] == -1].eq(-100).all() for batches in ranks for b in batches)


def test_a_budget_beyond_max_epochs_is_refused_unless_told(recipe, corpus: Path):
    tokens = open_data(recipe(source=str(corpus))).train_tokens
    assert tokens
    budget = {"source": str(corpus), "seq_len": 16, "steps": 10 * tokens // 128}
    with pytest.raises(DataError, match=rf"max_epochs=4 times, but [\d,]+ tokens are (9.9|10.0) epochs of {tokens:,}; .* or set data.max_epochs=10"):
        open_data(recipe(**budget)).train()
    assert open_data(recipe(**budget, max_epochs=10)).train()
    assert list(open_data(recipe(**budget)).validation(4))          # evaluation needs no budget


def test_the_suggested_max_epochs_is_enough(recipe, corpus: Path):
    tokens = open_data(recipe(source=str(corpus))).train_tokens
    assert tokens
    steps = int(5.3 * tokens / 128)
    with pytest.raises(DataError, match=r"set data.max_epochs=6"):
        open_data(recipe(source=str(corpus), steps=steps)).train()
    assert open_data(recipe(source=str(corpus), steps=steps, max_epochs=6)).train()
