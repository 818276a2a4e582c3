"""Opened data: a tokenizer, a training loader and the held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hymo.data.batch import PADDING, Batch
from hymo.data.loader import Loader
from hymo.data.order import Index
from hymo.data.packing import Rows
from hymo.data.tokenizer import Tokenizer
from hymo.errors import DataError


@dataclass(frozen=True)
class Data:
    """What a run reads.

    fingerprint    16 hex digits over everything that decides the tokens: source, split and tokenizer
    summary        what a log should say
    train_tokens   tokens of one epoch; None when the source is a stream
    """

    tokenizer: Tokenizer
    fingerprint: str
    summary: dict[str, str | int]
    train_tokens: int | None
    make_loader: Callable[[], Loader]
    held_out: Rows
    rank: int = 0
    world: int = 1

    def train(self) -> Loader:
        """A loader at the first row."""
        return self.make_loader()

    def validation(self, rows: int) -> Iterator[Batch]:
        """Always the same held-out rows, this rank's share of them, at most `rows` at once.

        Every rank gets the same number of batches of one shape; padding rows (no labels) fill the last.
        """
        count = self.held_out.count
        batches = -(-count // (rows * self.world))
        size = -(-count // (batches * self.world))
        for b in range(batches):
            index = np.arange(b * size * self.world, (b + 1) * size * self.world)[self.rank :: self.world]
            yield _padded(self.held_out(index[index < count]), size)


def _padded(batch: Batch, rows: int) -> Batch:
    missing = rows - len(batch)
    if not missing:
        return batch
    width = batch.tokens.shape[1]
    return Batch(
        torch.cat([batch.tokens, batch.tokens.new_zeros(missing, width)]),
        torch.cat([batch.documents, batch.documents.new_full((missing, width), PADDING)]),
        None if batch.targets is None else torch.cat([batch.targets, batch.targets.new_full((missing, width - 1), -100)]),
    )


@dataclass(frozen=True)
class FirstRows:
    """The first `count` rows of others."""

    rows: Rows
    count: int

    def __call__(self, index: Index) -> Batch:
        return self.rows(index)


def check_epochs(budget_tokens: int, train_tokens: int, max_epochs: float) -> None:
    """Refuse a budget that would read the data more than `max_epochs` times."""
    epochs = budget_tokens / train_tokens
    if epochs > max_epochs:
        raise DataError(
            f"a run must not read its data more than data.max_epochs={max_epochs:g} times, but {budget_tokens:,} tokens are {epochs:.1f} epochs of "
            f"{train_tokens:,}; lower train.tokens or train.steps, use a larger source, or set data.max_epochs={math.ceil(epochs)}"
        )
