"""Packing: documents laid end to end and cut into rows, every row a pure function of (seed, row number)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from hymo.data.batch import PADDING, Batch
from hymo.data.order import Index, permutation
from hymo.data.shards import TokenStore


class Rows(Protocol):
    """Random access to rows. `count` rows make one epoch; row numbers beyond it belong to later epochs."""

    @property
    def count(self) -> int: ...

    def __call__(self, index: Index) -> Batch:
        """The rows of these numbers, whoever asks, whenever."""


class PackedRows:
    """Rows of T+1 tokens from stored documents.

    An epoch is the documents in an order drawn from (seed, epoch), end to end, N tokens. Row r holds tokens r·T … r·T+T: each token is an input
    exactly once, and row r's last token is row r+1's first. What reaches beyond N is padding. The ⌈N/T⌉ rows are read in an order drawn from
    (seed, epoch) too, so that the pieces of a long document do not meet in one batch. `seed=None` keeps both orders as stored; `shuffle_rows=False`
    keeps the epoch's rows in order, so that the first n tokens are the same ones whatever T.
    """

    def __init__(self, store: TokenStore, seq_len: int, padding_token: int, seed: int | None, shuffle_rows: bool = True) -> None:
        self.store = store
        self.seq_len = seq_len
        self.padding_token = padding_token
        self.seed = seed
        self.shuffle_rows = shuffle_rows
        self.count = -(-store.tokens // seq_len)
        self._lengths = np.diff(store.bounds)
        self._epoch = -1

    def _enter(self, epoch: int) -> None:
        """Orders of this epoch; one epoch is kept."""
        if epoch == self._epoch:
            return
        self._documents, self._rows = np.arange(self.store.documents), np.arange(self.count)
        if self.seed is not None:
            self._documents = permutation(self.store.documents, self.seed, epoch, "documents")
        if self.seed is not None and self.shuffle_rows:
            self._rows = permutation(self.count, self.seed, epoch, "rows")
        self._begin = np.concatenate([[0], np.cumsum(self._lengths[self._documents])])     # of each document in the epoch
        self._epoch = epoch

    def __call__(self, index: Index) -> Batch:
        width = self.seq_len + 1
        tokens = np.full((len(index), width), self.padding_token, np.int64)
        documents = np.full((len(index), width), PADDING, np.int32)
        for i, number in enumerate(index):
            self._enter(int(number) // self.count)
            start = int(self._rows[int(number) % self.count]) * self.seq_len
            stop = min(start + width, self.store.tokens)
            first = int(np.searchsorted(self._begin, start, side="right")) - 1
            last = int(np.searchsorted(self._begin, stop, side="left"))
            begin = self._begin[first:last]
            kept = np.diff(np.clip(self._begin[first : last + 1], start, stop))           # tokens of each document in this row
            shift = self.store.bounds[self._documents[first:last]] - begin                # from the epoch's places to the store's
            tokens[i, : stop - start] = self.store.gather(np.arange(start, stop) + np.repeat(shift, kept))
            documents[i, : stop - start] = np.repeat(np.arange(last - first), kept)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(documents))
