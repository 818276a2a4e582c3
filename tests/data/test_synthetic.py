import numpy as np
import pytest
import torch

from hymo.data import open_data
from hymo.data.synthetic import SyntheticRows, Task, open_task, task
from hymo.errors import DataError


def test_rows_are_pure_functions_of_seed_split_and_number():
    def rows(split="train", seed=0):
        return SyntheticRows(open_task("copy", {}), 40, split, seed)(np.array([3, 200, 64])).tokens

    assert torch.equal(rows(), rows())
    assert torch.equal(rows()[1:2], SyntheticRows(open_task("copy", {}), 40, "train", 0)(np.array([200])).tokens)
    assert not torch.equal(rows(), rows(seed=1))
    assert not torch.equal(rows(), rows(split="validation"))


def test_a_training_set_of_fixed_size_is_read_again_in_another_order():
    rows = SyntheticRows(open_task("copy", {"examples": 70}), 40, "train", 0)
    first, second = (rows(np.arange(e * 70, e * 70 + 70)).tokens.tolist() for e in range(2))
    assert first != second
    assert sorted(first) == sorted(second)
    assert sorted(first) == sorted(SyntheticRows(open_task("copy", {}), 40, "train", 0)(np.arange(70)).tokens.tolist())


def test_through_open_data(recipe):
    r = recipe(source="synthetic:copy", options={"length": 4, "symbols": 8}, seq_len=8, eval_tokens=80, vocab_size=9)
    data = open_data(r)
    assert data.train_tokens is None
    assert data.tokenizer.vocab_size == 9
    assert data.tokenizer.decode(data.tokenizer.encode("3 1 8")) == "3 1 8"
    assert data.tokenizer.bytes_per_token.sum() == 0
    assert sum(len(b) for b in data.validation(3)) >= 10
    loader = data.train()
    loader.take(100)
    state = loader.state_dict()
    expected = loader.take(4)
    resumed = open_data(r, 1, 2).train()
    resumed.load_state_dict(state)
    assert torch.equal(resumed.take(4).targets, expected.targets[1::2])
    other = open_data(recipe(source="synthetic:copy", options={"length": 3, "symbols": 8}, seq_len=8, vocab_size=9))
    with pytest.raises(DataError, match=r"to resume, data fingerprint"):
        other.train().load_state_dict(state)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("synthetic:cpoy", {}, "must name a synthetic task, but got 'cpoy'; did you mean 'copy'"),
        ("synthetic:copy", {"lenght": 3}, "data.options.lenght of task 'copy': .*; did you mean 'length'"),
        ("synthetic:copy", {"length": 0}, "data.options.length of task 'copy': .* but got 0"),
        ("synthetic:copy", {"length": 9, "symbols": 4}, "train.seq_len must be at least 18 for this task, but got 16"),
        ("synthetic:copy", {"length": 4, "symbols": 300}, "model.vocab_size must be at least the 301 of tokenizer 'numbers', but got 257"),
        ("synthetic:copy", {"length": 4, "symbols": 4, "examples": 1}, "must not read its data more than data.max_epochs=4 times"),
    ],
)
def test_what_cannot_be_is_refused(recipe, source: str, options: dict, message: str):
    with pytest.raises(DataError, match=message):
        open_data(recipe(source=source, options=options)).train()


def test_a_task_that_breaks_its_word_is_refused():
    class Wrong(Task):
        @property
        def vocab_size(self):
            return 3

        def sample(self, rng, rows, seq_len, split):
            return np.full((rows, seq_len + 1), 3), np.zeros((rows, seq_len), np.int64)

    with pytest.raises(DataError, match=r"tokens must lie in 0 … 2, but got 3 … 3"):
        SyntheticRows(Wrong(), 8, "train", 0).check()
    with pytest.raises(DataError, match=r"'copy' is registered twice"):
        task("copy")(Wrong)
