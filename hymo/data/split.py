"""Which documents are held out: decided by their content, so that two copies of a document never lie on different sides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hymo.errors import DataError

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


def content_hash(document: bytes) -> int:
    """64 bits of the content."""
    return int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "little")


def stream_threshold(fraction: float) -> int:
    """Documents with a hash below it are held out: `fraction` of them in expectation."""
    return int(fraction * 2**64)


def finite_threshold(hashes: Hashes, fraction: float) -> int:
    """The threshold that holds out the nearest whole number to `fraction` of the documents, at least one; copies go together."""
    held_out = max(1, round(fraction * len(hashes)))
    return int(np.sort(hashes)[held_out - 1]) + 1


def split_text(document: bytes, fraction: float) -> tuple[bytes, bytes]:
    """Head and tail of a single text, the tail about `fraction` of it, cut after a line's end where there is one, never inside a character."""
    cut = len(document) - max(1, round(fraction * len(document)))
    line = document.rfind(b"\n", 0, cut) + 1
    if line:
        return document[:line], document[line:]
    while cut > 0 and document[cut] & 0xC0 == 0x80:
        cut -= 1
    return document[:cut], document[cut:]


class Split:
    """The two sides of a collection of documents, each re-readable.

    Training documents keep the source's order; held-out ones are read in the order of their hashes, so that the first few are a fair sample.
    """

    def __init__(self, documents: Iterable[bytes], fraction: float, name: str) -> None:
        self.hashes: Hashes = np.fromiter(map(content_hash, documents), np.uint64)
        self.fraction = fraction
        self.name = name
        if not len(self.hashes):
            raise DataError(f"data.source must hold text, but got {name!r} with nothing in it")
        self.threshold = finite_threshold(self.hashes, fraction) if len(self.hashes) > 1 else 0

    def train(self, documents: Iterable[bytes]) -> Iterator[bytes]:
        if len(self.hashes) == 1:
            head, _ = split_text(next(iter(documents)), self.fraction)
            return iter([head] if head else [])
        return (d for d, h in zip(documents, self.hashes, strict=True) if h >= self.threshold)

    def validation(self, documents: Iterable[bytes]) -> list[bytes]:
        if len(self.hashes) == 1:
            return [split_text(next(iter(documents)), self.fraction)[1]]
        held = [(int(h), d) for d, h in zip(documents, self.hashes, strict=True) if h < self.threshold]
        return [d for _, d in sorted(held)]
