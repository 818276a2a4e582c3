import torch
from hypothesis import given
from hypothesis import strategies as st

from hymo.data.batch import Batch

# two rows of T+1 = 7 tokens: documents of 3, 2 and 2 tokens; a document of 4 tokens and padding
TOKENS = torch.tensor([[10, 11, 12, 20, 21, 30, 31], [40, 41, 42, 43, 0, 0, 0]])
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 0, -1, -1, -1]], dtype=torch.int32)
NO = -100


def test_labels_stop_at_document_ends_by_hand():
    batch = Batch(TOKENS, DOCUMENTS)
    assert batch.labels(0).tolist() == [[11, 12, NO, 21, NO, 31], [41, 42, 43, NO, NO, NO]]
    assert batch.labels(1).tolist() == [[12, NO, NO, NO, NO], [42, 43, NO, NO, NO]]
    assert batch.labels(2).tolist() == [[NO, NO, NO, NO], [43, NO, NO, NO]]


def test_targets_take_the_place_of_the_next_token():
    targets = torch.tensor([[1, NO, 2, 3, 4, 5], [NO, NO, 7, 8, 9, 9]])
    batch = Batch(TOKENS, DOCUMENTS, targets)
    assert batch.labels(0).tolist() == [[1, NO, NO, 3, NO, 5], [NO, NO, 7, NO, NO, NO]]
    assert batch.labels(1).tolist() == [[NO, NO, NO, NO, NO], [NO, 7, NO, NO, NO]]


def test_inputs_rows_and_length():
    batch = Batch(TOKENS, DOCUMENTS, TOKENS[:, 1:])
    assert torch.equal(batch.inputs, TOKENS[:, :6])
    assert torch.equal(batch.input_documents, DOCUMENTS[:, :6])
    assert len(batch) == 2
    second = batch.rows(1, 2)
    assert torch.equal(second.tokens, TOKENS[1:])
    assert torch.equal(second.documents, DOCUMENTS[1:])
    assert second.targets is not None
    assert torch.equal(second.targets, TOKENS[1:, 1:])
    moved = batch.to("cpu")
    assert torch.equal(moved.tokens, TOKENS)


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8), padding=st.integers(0, 4), k=st.integers(0, 3))
def test_labels_against_a_loop(lengths: list[int], padding: int, k: int):
    documents = [d for d, n in enumerate(lengths) for _ in range(n)] + [-1] * padding
    width = len(documents)
    if width <= k + 1:
        return
    batch = Batch(torch.arange(width)[None], torch.tensor(documents, dtype=torch.int32)[None])
    expected = [t + k + 1 if documents[t + k + 1] == documents[t] != -1 else NO for t in range(width - 1 - k)]
    assert batch.labels(k).tolist() == [expected]
