"""What is trained on and what is held out. Content decides, so two copies of a document never lie on different sides."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from hymo.data.cache import digest
from hymo.data.sources import TextSource
from hymo.errors import DataError

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


class Sides(ABC):
    """The documents of training and those held out from it, each re-readable."""

    train_source: TextSource
    fingerprint: str

    @abstractmethod
    def trains_on(self, document: bytes) -> bool:
        """Whether a document of a stream belongs to training."""

    @abstractmethod
    def train(self) -> Iterator[bytes]:
        """Training documents, in the source's order."""

    @abstractmethod
    def validation(self) -> Iterator[bytes]:
        """Held-out documents, in the source's order."""


class Separate(Sides):
    """Held-out text from a source of its own."""

    def __init__(self, train_source: TextSource, validation_source: TextSource) -> None:
        self.train_source = train_source
        self.validation_source = validation_source
        self.fingerprint = digest("separate", train_source.fingerprint, validation_source.fingerprint)

    def trains_on(self, document: bytes) -> bool:
        return True

    def train(self) -> Iterator[bytes]:
        return self.train_source.documents()

    def validation(self) -> Iterator[bytes]:
        return self.validation_source.documents()


class ByContent(Sides):
    """Documents whose content hash lies below a threshold are held out: `fraction` of them.

    A stream's threshold is fraction·2^64. A finite source is read once for its hashes, and the threshold is the one that holds out the nearest
    whole number of documents, at least one. Of a single document the tail is held out.
    """

    def __init__(self, source: TextSource, fraction: float) -> None:
        self.train_source = source
        self.fraction = fraction
        self.fingerprint = digest("by content", source.fingerprint, fraction)

    @cached_property
    def _hashes(self) -> Hashes:
        hashes = np.fromiter(map(content_hash, self.train_source.documents()), np.uint64)
        if not len(hashes):
            raise DataError(f"data.source must hold text, but {self.train_source.name!r} is empty")
        return hashes

    @cached_property
    def _threshold(self) -> int:
        if self.train_source.endless:
            return int(self.fraction * 2**64)
        return int(np.sort(self._hashes)[max(1, round(self.fraction * len(self._hashes))) - 1]) + 1

    @property
    def _single(self) -> bool:
        return not self.train_source.endless and len(self._hashes) == 1

    def trains_on(self, document: bytes) -> bool:
        return content_hash(document) >= self._threshold

    def train(self) -> Iterator[bytes]:
        if self._single:
            return iter(filter(None, [split_text(next(self.train_source.documents()), self.fraction)[0]]))
        return filter(self.trains_on, self.train_source.documents())

    def validation(self) -> Iterator[bytes]:
        if self._single:
            return iter([split_text(next(self.train_source.documents()), self.fraction)[1]])
        return (d for d in self.train_source.documents() if not self.trains_on(d))


def content_hash(document: bytes) -> int:
    """64 bits of the content."""
    return int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "little")


def split_text(document: bytes, fraction: float) -> tuple[bytes, bytes]:
    """Head and tail of one text, the tail about `fraction` of it: cut after a line's end where there is one, never inside a character."""
    cut = len(document) - max(1, round(fraction * len(document)))
    if line := document.rfind(b"\n", 0, cut) + 1:
        return document[:line], document[line:]
    while cut > 0 and document[cut] & 0xC0 == 0x80:
        cut -= 1
    return document[:cut], document[cut:]
