"""Loaders: the next rows of a run, whatever the number of processes; their position is part of a checkpoint."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hymo.data.batch import Batch
from hymo.data.packing import Rows
from hymo.errors import DataError


class Loader(Protocol):
    """What training reads from."""

    def take(self, n_rows_global: int) -> Batch:
        """This rank's share of the next `n_rows_global` rows: rows rank, rank+world, … of them."""

    def state_dict(self) -> dict[str, Any]:
        """Everything the next `take` depends on: strings, numbers, lists and mappings only."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly there. Raises DataError when the data is not what it was."""


def share(n_rows_global: int, rank: int, world: int) -> slice:
    """The rows of a global batch that `rank` takes."""
    if n_rows_global % world:
        raise DataError(f"the rows of a global batch must be a multiple of the number of processes, but got {n_rows_global=} and {world=}")
    return slice(rank, None, world)


def check_identity(state: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse the position of a loader that read something else."""
    for key, now in identity.items():
        if state.get(key) != now:
            raise DataError(f"to resume, {key} must be the {state.get(key)!r} that the run began with, but got {now!r}; restore it, or start anew")


class RowLoader:
    """A loader over rows with random access: its whole state is the number of the next row."""

    def __init__(self, rows: Rows, identity: dict[str, Any], rank: int = 0, world: int = 1) -> None:
        self.rows = rows
        self.identity = identity
        self.rank = rank
        self.world = world
        self.position = 0

    def take(self, n_rows_global: int) -> Batch:
        mine = share(n_rows_global, self.rank, self.world)
        batch = self.rows(np.arange(self.position, self.position + n_rows_global)[mine])
        self.position += n_rows_global
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {**self.identity, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_identity(state, self.identity)
        self.position = int(state["position"])
