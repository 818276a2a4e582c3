"""The next step's rows, read and brought to the device while the step before them computes."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hymo.data.batch import IGNORED, Batch
from hymo.data.loader import Loader
from hymo.errors import CheckpointError


@dataclass(frozen=True)
class Fed:
    """Rows of one optimizer step on this rank.

    batch     on the device
    counts    labels in it, for the main head and for each extra head; on the device
    state     where the feed stands after it: what a checkpoint after this step holds
    index     number of the batch in the run, from 0
    """

    batch: Batch
    counts: Tensor
    state: dict[str, Any]
    index: int


class Feed:
    """Takes `rows` rows (over all ranks) a step from a loader, one step ahead, leaving out the batches whose numbers are in `skip`."""

    def __init__(self, loader: Loader, rows: int, heads: int, device: torch.device) -> None:
        self.loader, self.rows, self.heads, self.device = loader, rows, heads, device
        self.skip: frozenset[int] = frozenset()
        self._index = 0
        self._thread = ThreadPoolExecutor(1, "hymo-feed", initializer=self._enter)
        self._ahead: Future[Fed] | None = None

    def next(self) -> Fed:
        """The next batch; reading the one after it begins. Raises what the loader raised."""
        fed = (self._ahead or self._thread.submit(self._take)).result()
        self._ahead = self._thread.submit(self._take)
        return fed

    def rewind(self, state: dict[str, Any], skip: Iterable[int]) -> None:
        """Go on from a `Fed.state`."""
        if self._ahead is not None:
            self._ahead.exception()     # wait: the loader belongs to one thread at a time
            self._ahead = None
        try:
            self.loader.load_state_dict(state["loader"])
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            what = f"{type(error).__name__} {error}"
            raise CheckpointError(f"a checkpoint must say where the data stood, but got {what}; hymo did not write it") from None
        self._index, self.skip = int(state["batches"]), frozenset(skip)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _enter(self) -> None:
        """A thread has a current GPU of its own, at first GPU 0: pinning memory there would open a context on it for every rank."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def _take(self) -> Fed:
        while self._index in self.skip:
            self.loader.take(self.rows)
            self._index += 1
        batch = self.loader.take(self.rows)
        self._index += 1
        counts = torch.stack([(batch.labels(k) != IGNORED).sum() for k in range(self.heads + 1)]).float()
        return Fed(batch.to(self.device), counts.to(self.device), {"loader": self.loader.state_dict(), "batches": self._index}, self._index - 1)
