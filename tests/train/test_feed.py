from typing import Any

import pytest
import torch

from hymo.data import Batch
from hymo.data.loader import RowLoader
from hymo.errors import CheckpointError, DataError
from hymo.train.feed import Feed

CPU = torch.device("cpu")


class Counting:
    """Rows that say which they are: row i holds the token i only."""

    def __init__(self, end: int = 10**9) -> None:
        self.position, self.end = 0, end

    def take(self, n_rows_global: int) -> Batch:
        if self.position >= self.end:
            raise DataError("there is no more")
        rows = torch.arange(self.position, self.position + n_rows_global)
        self.position += n_rows_global
        documents = torch.zeros(n_rows_global, 5, dtype=torch.int32)
        documents[:, 3:] = 1
        return Batch(rows[:, None].expand(-1, 5), documents)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def feed(**kwargs: int) -> Feed:
    return Feed(Counting(**kwargs), rows=2, heads=2, device=CPU)


def first(fed: Any) -> int:
    return int(fed.batch.tokens[0, 0])


def test_rows_in_order_with_counts_and_state() -> None:
    reading = feed()
    fed = reading.next()
    assert first(fed) == 0
    assert fed.counts.tolist() == [6.0, 2.0, 0.0]        # documents of 3 and 2 tokens: 2+1, 1+0 and 0 labels a row
    assert fed.state == {"loader": {"position": 2}, "batches": 1}       # not the batch that is read ahead
    assert [first(reading.next()) for _ in range(3)] == [2, 4, 6]
    reading.close()


def test_rewound_it_goes_on_from_a_state() -> None:
    reading = feed()
    states = [reading.next().state for _ in range(4)]
    reading.rewind(states[1], skip=[])
    fed = reading.next()
    assert (first(fed), fed.index) == (4, 2)
    reading.close()


def test_batches_to_skip_are_left_out() -> None:
    reading = feed()
    reading.rewind({"loader": {"position": 0}, "batches": 0}, skip=[1, 2])
    found = [reading.next() for _ in range(3)]
    assert [(first(f), f.index) for f in found] == [(0, 0), (6, 3), (8, 4)]
    assert found[1].state == {"loader": {"position": 8}, "batches": 4}
    reading.close()


def test_an_error_comes_with_the_batch_it_belongs_to() -> None:
    reading = feed(end=4)
    assert [first(reading.next()) for _ in range(2)] == [0, 2]      # the third is being read by now
    with pytest.raises(DataError, match="no more"):
        reading.next()
    reading.close()


@pytest.mark.parametrize("loader", [{}, {"position": None}, {"position": "x"}, {"position": float("inf")}])
def test_a_position_that_no_loader_wrote_is_one_error(loader: dict[str, Any]) -> None:
    feed = Feed(RowLoader(lambda index: None, {}), 4, 0, CPU)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="must say where the data stood"):
        feed.rewind({"loader": loader, "batches": 0}, [])
    feed.close()
