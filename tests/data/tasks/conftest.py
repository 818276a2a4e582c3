from collections.abc import Callable, Collection

import numpy as np
import pytest

from hymo.data.synthetic import IGNORED, open_task

Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def draw() -> Callable[..., Rows]:
    """Tokens and targets of a task: draw("mqar", rows=…, seq_len=…, split=…, seed=…, any of its options)."""

    def make(name: str, *, rows: int = 64, seq_len: int = 128, split: str = "validation", seed: int = 0, **options: object) -> Rows:
        return open_task(name, options).sample(np.random.default_rng(seed), rows, seq_len, split)

    return make


@pytest.fixture
def asked() -> Callable[..., list[int]]:
    """What each position of a row of pairs must be asked for, by reading it pair by pair."""

    def read(row: list[int], keys: Collection[int], values: Collection[int], mark: int | None = None) -> list[int]:
        memory: dict[int, int] = {}
        expected: list[int] = []
        at = 0
        while at < len(row):
            if row[at] == mark:
                expected.append(IGNORED)
                at += 1
                continue
            key, value = row[at : at + 2]
            expected += [IGNORED, memory.get(key, IGNORED) if key in keys else IGNORED]
            if key in keys:
                assert value in values
                assert memory.setdefault(key, value) == value, "a key keeps its value within the row"
            at += 2
        return expected

    return read
