"""Rows from a stream: documents in the order they come, shuffled a chunk at a time, resumable at any token."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hymo.data.batch import Batch
from hymo.data.loader import check_identity, share
from hymo.data.order import Index, permutation
from hymo.data.sources import Hub
from hymo.data.split import Sides
from hymo.data.tokenizer import Tokenizer, Tokens
from hymo.errors import DataError


@dataclass(frozen=True)
class Chunk:
    """A run of shuffled, tokenised documents. `place` (in the stream) and `number` are all it takes to make it again."""

    place: dict[str, Any]
    number: int
    tokens: Tokens
    documents: Index        # which document of the chunk each token belongs to


class Chunks:
    """Chunk c is the next `size` training documents of the stream in an order drawn from (seed, c).

    Since a chunk is a pure function of its place and number, a shuffle needs no buffer in the checkpoint: it is read again.
    """

    def __init__(self, sides: Sides, tokenizer: Tokenizer, seed: int | None, size: int, max_epochs: float) -> None:
        if not isinstance(sides.train_source, Hub):
            raise DataError(f"only a hub dataset is streamed, but got {sides.train_source.name!r}")
        self._hub = sides.train_source
        self._sides = sides
        self._tokenizer = tokenizer
        self._seed = seed
        self._size = size
        self._max_epochs = max_epochs
        self._reader = self._hub.reader(seed, {"epoch": 0})

    def __call__(self, place: dict[str, Any] | None, number: int) -> Chunk:
        """The chunk at `place`, or the one after the last asked for."""
        if place is not None:
            self._reader = self._hub.reader(self._seed, place)
        begin = self._reader.place
        documents: list[bytes] = []
        ends = 0
        while not documents:
            read = self._reader.read(self._size)
            if not read:
                ends += 1
                self._next_epoch(ends)
            documents = [d for d in read if d and self._sides.trains_on(d)]
        if self._seed is not None:
            documents = [documents[i] for i in permutation(len(documents), self._seed, number, "chunk")]
        encoded = [np.append(t.astype(np.int64), self._tokenizer.eot_id) for t in self._tokenizer.encode_many(documents)]
        numbers = np.repeat(np.arange(len(encoded)), [len(t) for t in encoded])
        return Chunk(begin, number, np.concatenate(encoded), numbers)

    def _next_epoch(self, ends: int) -> None:
        if ends > 1:
            raise DataError(f"data.source must hold text to train on, but {self._hub.name!r} has none")
        epoch = self._reader.place["epoch"] + 1
        if epoch >= self._max_epochs:
            raise DataError(
                f"a run must not read its data more than data.max_epochs={self._max_epochs:g} times, but {self._hub.name!r} has ended {epoch} times; "
                "lower the budget, use a larger source, or raise data.max_epochs"
            )
        self._reader = self._hub.reader(self._seed, {"epoch": epoch})


class StreamLoader:
    """Row r holds tokens r·T … r·T+T of the endless sequence of chunks. The next chunk is read and tokenised in the background.

    State: the place and number of the chunk that holds the next token, and that token's offset in it.
    """

    def __init__(self, chunks: Chunks, seq_len: int, identity: dict[str, Any], rank: int = 0, world: int = 1) -> None:
        self._chunks = chunks
        self._seq_len = seq_len
        self._identity = identity
        self._rank, self._world = rank, world
        self._worker = ThreadPoolExecutor(1, "hymo-data")
        self._start(None, 0, 0)

    def _start(self, place: dict[str, Any] | None, number: int, offset: int) -> None:
        self._held: deque[Chunk] = deque()                                      # chunks not wholly read yet
        self._tokens = self._documents = np.empty(0, np.int64)                  # theirs, end to end
        self._offset = offset                                                   # of the next token in them
        self._pending: Future[Chunk] = self._worker.submit(self._chunks, place, number)

    def _receive(self) -> None:
        chunk = self._pending.result()
        while self._held and self._offset >= len(self._held[0].tokens):
            done = len(self._held.popleft().tokens)
            self._offset -= done
            self._tokens, self._documents = self._tokens[done:], self._documents[done:]
        after = int(self._documents[-1]) + 1 if len(self._documents) else 0
        self._held.append(chunk)
        self._tokens = np.concatenate([self._tokens, chunk.tokens])
        self._documents = np.concatenate([self._documents, chunk.documents + after])
        self._pending = self._worker.submit(self._chunks, None, chunk.number + 1)

    def take(self, n_rows_global: int) -> Batch:
        mine = share(n_rows_global, self._rank, self._world)
        length = n_rows_global * self._seq_len
        while len(self._tokens) < self._offset + length + 1:
            self._receive()

        def rows(flat: Index) -> Index:
            window = flat[self._offset : self._offset + length + 1]
            return np.lib.stride_tricks.sliding_window_view(window, self._seq_len + 1)[:: self._seq_len][mine]

        tokens, documents = rows(self._tokens).copy(), rows(self._documents)
        self._offset += length
        return Batch(torch.from_numpy(tokens), torch.from_numpy((documents - documents[:, :1]).astype(np.int32)))

    def state_dict(self) -> dict[str, Any]:
        while len(self._tokens) <= self._offset:        # the chunk of the next token is part of the state
            self._receive()
        offset = self._offset
        for chunk in self._held:
            if offset < len(chunk.tokens):
                break
            offset -= len(chunk.tokens)
        return {**self._identity, "place": chunk.place, "chunk": chunk.number, "offset": offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_identity(state, self._identity)
        self._pending.cancel()
        self._start(state["place"], int(state["chunk"]), int(state["offset"]))
