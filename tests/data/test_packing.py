import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hymo.data.packing import PackedRows


class Places:
    """A store in which every token is its own place, so that where a token came from can be read off it."""

    def __init__(self, lengths: list[int]) -> None:
        self.bounds = np.cumsum([0, *lengths])
        self.tokens = int(self.bounds[-1])
        self.documents = len(lengths)

    def gather(self, index: np.ndarray) -> np.ndarray:
        return index


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def test_stored_order_by_hand():
    batch = PackedRows(Places([3, 2, 4]), seq_len=4, padding_token=99, seed=None)(np.arange(3))
    assert batch.tokens.tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [8, 99, 99, 99, 99]]
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1], [0, 1, 1, 1, 1], [0, -1, -1, -1, -1]]


@given(lengths=LENGTHS, seq_len=st.integers(1, 16), seed=st.none() | st.integers(0, 9), epoch=st.integers(0, 3))
def test_every_token_is_an_input_once_an_epoch(lengths: list[int], seq_len: int, seed: int | None, epoch: int):
    rows = PackedRows(Places(lengths), seq_len, 0, seed)
    batch = rows(np.arange(epoch * rows.count, (epoch + 1) * rows.count))
    inputs = batch.inputs[batch.input_documents != -1]
    assert sorted(inputs.tolist()) == list(range(sum(lengths)))


@given(lengths=LENGTHS, seq_len=st.integers(1, 16), seed=st.none() | st.integers(0, 9))
def test_document_numbers_change_exactly_where_documents_do(lengths: list[int], seq_len: int, seed: int | None):
    store = Places(lengths)
    batch = PackedRows(store, seq_len, 0, seed)(np.arange(5))
    for tokens, documents in zip(batch.tokens.tolist(), batch.documents.tolist(), strict=True):
        real = documents.count(-1)
        length = len(tokens) - real
        assert documents[length:] == [-1] * real        # padding only at the end
        assert documents[0] == 0
        owner = np.searchsorted(store.bounds, tokens[:length], side="right") - 1
        for t in range(1, length):
            same = owner[t] == owner[t - 1]
            assert documents[t] - documents[t - 1] == (0 if same else 1)
            assert tokens[t] == (tokens[t - 1] + 1 if same else store.bounds[owner[t]])        # no token skipped, none doubled
            if not same:
                assert tokens[t - 1] + 1 == store.bounds[owner[t - 1] + 1]


def test_a_row_does_not_depend_on_what_was_read_before():
    rows = PackedRows(Places([5, 9, 1, 30, 2]), 4, 0, seed=3)
    count = rows.count
    later = rows(np.array([2 * count + 1]))
    rows(np.arange(7))
    again = PackedRows(Places([5, 9, 1, 30, 2]), 4, 0, seed=3)(np.array([0, 2 * count + 1]))
    assert later.tokens[0].tolist() == again.tokens[1].tolist()
