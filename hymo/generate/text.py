"""Tokens to text as they come: no half character, and nothing that may yet turn out to be a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Writer:
    """The text of one row. Bytes are held back while they could be the beginning of a character or of a stop string."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stops = [stop.encode("utf-8", "surrogateescape") for stop in stops]
        self.stopped = False
        self._waiting = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes) -> str:
        """The text that is certain after `piece`. A stop string ends it; neither the string nor what follows is ever part of it."""
        if self.stopped:
            return ""
        self._waiting += piece
        found = [at for stop in self.stops if (at := self._waiting.find(stop)) >= 0]
        if found:
            self.stopped = True
            certain, self._waiting = self._waiting[: min(found)], b""
            return self._decoder.decode(certain, final=True)
        cut = len(self._waiting) - max((self._begun(stop) for stop in self.stops), default=0)
        certain, self._waiting = self._waiting[:cut], self._waiting[cut:]
        return self._decoder.decode(certain)

    def close(self) -> str:
        """What was held back, when nothing more comes."""
        rest, self._waiting = self._waiting, b""
        return "" if self.stopped else self._decoder.decode(rest, final=True)

    def _begun(self, stop: bytes) -> int:
        """Bytes of the longest beginning of `stop` that the waiting bytes end in."""
        return next((n for n in range(min(len(stop) - 1, len(self._waiting)), 0, -1) if self._waiting.endswith(stop[:n])), 0)
