import json
from pathlib import Path

import pytest
import torch

from hymo.data import Data, open_data
from hymo.data.split import content_hash
from hymo.errors import DataError

DOCUMENTS = [f"document {i} " + "x" * (i * 7 % 40) for i in range(120)]


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """A dataset of five files, opened through the same streaming code of the `datasets` library as one of the hub."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    for part in range(5):
        lines = (json.dumps({"text": text, "id": 0}) + "\n" for text in DOCUMENTS[part * 24 : part * 24 + 24])
        (folder / f"part-{part}.jsonl").write_text("".join(lines))
    return f"hf:{folder}"


@pytest.fixture
def data(recipe, dataset: str):
    def make(rank: int = 0, world: int = 1, **changes) -> Data:
        settings = {"source": dataset, "validation_frac": 0.2, "shuffle_buffer": 10, "eval_tokens": 400, "max_epochs": 9, **changes}
        return open_data(recipe(**settings), rank, world)

    return make


def documents_of(batch) -> list[str]:
    """The whole documents of rows in stream order."""
    flat = torch.cat([batch.inputs.flatten(), batch.tokens[-1:, -1]])
    return bytes(t if t < 256 else 0 for t in flat.tolist()).decode().split("\0")[:-1]


def held_out(text: str) -> bool:
    return content_hash(text.encode()) < int(0.2 * 2**64)


def epoch_rows() -> int:
    return sum(len(d) + 1 for d in DOCUMENTS if not held_out(d)) // 16


def test_each_training_document_once_an_epoch_and_never_a_held_out_one(data):
    training = [d for d in DOCUMENTS if not held_out(d)]
    read = documents_of(data().train().take(2 * epoch_rows() + 1))
    first, second = read[: len(training)], read[len(training) : 2 * len(training) - 2]
    assert sorted(first) == sorted(training)
    assert len(set(second)) == len(second)
    assert set(second) <= set(training)
    assert first[: len(second)] != second       # reshuffled
    validation = [d for batch in data().validation(100) for d in documents_of(batch)]
    assert set(validation) <= {d for d in DOCUMENTS if held_out(d)}
    assert len(validation) > 5


def test_unshuffled_keeps_the_order(data):
    read = documents_of(data(shuffle=False).train().take(epoch_rows() - 2))
    assert read == [d for d in DOCUMENTS if not held_out(d)][: len(read)]


def test_document_numbers_and_overlap(data):
    batch = data().train().take(12)
    assert torch.equal(batch.tokens[1:, 0], batch.tokens[:-1, -1])
    ends = batch.tokens[:, :-1] == 256
    assert torch.equal(batch.documents[:, 1:] - batch.documents[:, :-1], ends.int())
    assert (batch.documents[:, 0] == 0).all()


@pytest.mark.parametrize("taken", [0, 1, 7, 40, 200, 450])
def test_resume_is_bit_exact_anywhere(data, taken: int):
    """Inside a chunk, inside a file, in a later epoch; the state passes through JSON."""
    loader = data().train()
    for _ in range(taken):
        loader.take(1)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = data().train()
    resumed.take(3)             # a position of its own that must be forgotten
    resumed.load_state_dict(state)
    for _ in range(12):
        a, b = loader.take(8), resumed.take(8)
        assert torch.equal(a.tokens, b.tokens)
        assert torch.equal(a.documents, b.documents)
    assert json.dumps(loader.state_dict()) == json.dumps(resumed.state_dict())


def test_ranks_interleave_and_micro_batches_do_not_matter(data):
    whole = data().train()
    ranks = [data(rank, 2).train() for rank in range(2)]
    for n in (8, 2, 30, 4):
        batch = whole.take(n)
        parts = [loader.take(n) for loader in ranks]
        for rank, part in enumerate(parts):
            assert torch.equal(part.tokens, batch.tokens[rank::2])
            assert torch.equal(part.documents, batch.documents[rank::2])


def test_seeds_read_in_different_orders(data):
    assert not torch.equal(data(seed=0).train().take(8).tokens, data(seed=1).train().take(8).tokens)


def test_validation_does_not_depend_on_the_seed(data):
    a, b = ([x.tokens.tolist() for x in data(seed=s).validation(4)] for s in (0, 1))
    assert a == b


def test_a_stream_that_ends_too_often_is_refused(data):
    loader = data(max_epochs=2).train()
    loader.take(epoch_rows() + 5)
    with pytest.raises(DataError, match=r"must not read its data more than data.max_epochs=2 times, but 'hf:.*' has ended 2 times"):
        loader.take(epoch_rows())


def test_a_changed_dataset_is_refused_on_resume(data, dataset: str):
    state = data().train().state_dict()
    (Path(dataset.removeprefix("hf:")) / "part-9.jsonl").write_text('{"text": "new", "id": 0}\n')
    with pytest.raises(DataError, match=r"to resume, data fingerprint must be"):
        data().train().load_state_dict(state)


def test_all_of_a_stream_held_out_is_refused(data):
    with pytest.raises(DataError, match=r"must hold text to train on, but 'hf:.*' has none"):
        data(validation_frac=0.9999999).train().take(1)


def test_a_stream_in_the_summary(data):
    opened = data()
    assert opened.train_tokens is None
    assert opened.summary["files"] == 5
    assert opened.summary["fingerprint"] == opened.fingerprint
