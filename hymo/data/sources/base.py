"""What a source of text is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator


class TextSource(ABC):
    """An ordered collection of documents, each of them bytes. Reading it twice gives the same.

    `endless` sources are too large to be read before training starts: they are streamed.
    """

    name: str
    endless: bool = False

    @abstractmethod
    def documents(self) -> Iterator[bytes]:
        """Every document that is not empty, in the source's order. Raises DataError for what cannot be read."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """16 hex digits that change with the content."""

    @property
    def summary(self) -> dict[str, str | int]:
        """What a log should say about it."""
        return {}
