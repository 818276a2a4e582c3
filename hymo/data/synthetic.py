"""Synthetic tasks as data: `data.source=synthetic:<task>`, its settings in `data.options`.

A task is one class in one file of hymo/data/tasks (or an installed package's entry point `hymo.tasks`): its settings are its fields, and
`sample` draws rows. Everything else, order, resume, held-out rows, processes, is done here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hymo.data.batch import IGNORED, PADDING, Batch
from hymo.data.cache import digest
from hymo.data.order import Index, permutation
from hymo.data.tokenizer import Tokenizer, Tokens
from hymo.errors import DataError, did_you_mean

__all__ = ["IGNORED", "Ints", "SyntheticRows", "Task", "open_task", "task", "task_names"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Split = Literal["train", "validation"]
T = TypeVar("T", bound="type[Task]")

_tasks: dict[str, type[Task]] = {}
_BLOCK = 64      # rows drawn together; part of what a seed means


class Task(BaseModel):
    """A task and its settings: frozen, unknown settings refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    examples: int | None = Field(default=None, gt=0, description="size of the training set, read again each epoch; none: every row is new")

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Tokens are 0 … vocab_size−1."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, rows: int, seq_len: int, split: Split) -> tuple[Ints, Ints]:
        """Tokens (rows, L+1) and targets (rows, L), L <= seq_len; targets[t] is what position t is asked for, −100 is nothing.

        All randomness comes from `rng`. `split` is there for tasks that are asked less when held out.
        """

    def must_fit(self, length: int, seq_len: int) -> None:
        """Raise DataError when the task needs more than `seq_len` tokens."""
        if length > seq_len:
            raise DataError(f"train.seq_len must be at least {length} for this task, but got {seq_len}; raise it, or lower the task's data.options")


def task(name: str) -> Callable[[T], T]:
    """Register a task under `name`."""

    def register(cls: T) -> T:
        if name in _tasks and _tasks[name] is not cls:
            raise DataError(f"task names must be unique, but {name!r} is registered twice")
        _tasks[name] = cls
        return cls

    return register


def task_names() -> list[str]:
    """Registered names, sorted."""
    _discover()
    return sorted(_tasks)


@cache
def _discover() -> None:
    """Import the shipped tasks and those of installed packages, once."""
    package = importlib.import_module("hymo.data.tasks")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"hymo.data.tasks.{module.name}")
    for entry in importlib.metadata.entry_points(group="hymo.tasks"):
        entry.load()


def open_task(name: str, options: dict[str, Any]) -> Task:
    """The task of this name with these settings."""
    names = task_names()
    if name not in _tasks:
        raise DataError(f"data.source must name a synthetic task, but got {name!r}{did_you_mean(name, names)}")
    cls = _tasks[name]
    try:
        return cls.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        hint = did_you_mean(key, cls.model_fields) if first["type"] == "extra_forbidden" else ""
        raise DataError(f"data.options.{key} of task {name!r}: {first['msg']}, but got {first['input']!r}{hint}") from None


class SyntheticRows:
    """Rows of a task. Row r belongs to block r // 64, drawn at once from (seed, split, block): a pure function of its number.

    Rows shorter than T are padded. With `examples`, row r is example r mod examples, in an order drawn from (seed, epoch).
    """

    def __init__(self, source: Task, seq_len: int, split: Split, seed: int) -> None:
        self.task = source
        self.seq_len = seq_len
        self.split = split
        self.seed = seed
        self.count = source.examples or 1 << 62
        self._blocks: dict[int, tuple[Ints, Ints]] = {}
        self._epoch: tuple[int, Index] | None = None

    def check(self) -> None:
        """Draw once, so that settings that cannot be are refused before training starts, and a task that breaks its word with them."""
        tokens, targets = self._draw(0)
        if tokens.shape != (_BLOCK, targets.shape[1] + 1) or targets.shape[0] != _BLOCK or targets.shape[1] > self.seq_len:
            raise DataError(f"a task must give (rows, L+1) tokens and (rows, L) targets, L<={self.seq_len}, but got {tokens.shape}, {targets.shape}")
        least, most = tokens.min(), max(tokens.max(), targets.max())
        if least < 0 or most >= self.task.vocab_size:
            raise DataError(f"a task's tokens must lie in 0 … {self.task.vocab_size - 1}, but got {least} … {most}")

    def _draw(self, block: int) -> tuple[Ints, Ints]:
        if block not in self._blocks:
            if self.task.examples is None:
                self._blocks.clear()        # rows come in order: only the latest block is asked for again
            rng = np.random.Generator(np.random.Philox(key=int(digest("task", self.seed, self.split, block), 16)))
            self._blocks[block] = self.task.sample(rng, _BLOCK, self.seq_len, self.split)
        return self._blocks[block]

    def _example(self, number: int) -> int:
        examples = self.task.examples
        if examples is None or self.split == "validation":
            return number
        epoch, place = divmod(number, examples)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, permutation(examples, self.seed, epoch, "examples"))
        return int(self._epoch[1][place])

    def __call__(self, index: Index) -> Batch:
        tokens = np.zeros((len(index), self.seq_len + 1), np.int64)
        documents = np.full(tokens.shape, PADDING, np.int32)
        targets = np.full((len(index), self.seq_len), IGNORED, np.int64)
        for i, number in enumerate(index):
            block, row = divmod(self._example(int(number)), _BLOCK)
            drawn, asked = self._draw(block)
            length = asked.shape[1]
            tokens[i, : length + 1], documents[i, : length + 1], targets[i, :length] = drawn[row], 0, asked[row]
        return Batch(torch.from_numpy(tokens), torch.from_numpy(documents), torch.from_numpy(targets))


class Numbers(Tokenizer):
    """Tokens without text, written as numbers: "3 17 2"."""

    def __init__(self, vocab_size: int) -> None:
        self.name = "numbers"
        self.fingerprint = digest("numbers", vocab_size)
        self.token_bytes = [b""] * vocab_size       # no text, so no bits per byte
        self.eot_id = 0

    def encode_many(self, documents: Sequence[bytes]) -> list[Tokens]:
        try:
            encoded = [np.array([int(word) for word in document.split()], np.int64) for document in documents]
        except ValueError:
            raise DataError(f"a synthetic task reads numbers such as '3 17 2', but got {documents[0][:40]!r}") from None
        if any(len(e) and not 0 <= e.min() <= e.max() < self.vocab_size for e in encoded):
            raise DataError(f"tokens of this task must lie in 0 … {self.vocab_size - 1}")
        return encoded

    def piece(self, token: int) -> bytes:
        return f" {token}".encode()

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(map(str, ids))
