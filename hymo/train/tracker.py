"""What a run tells the outside: the Tracker protocol, and the tracker that keeps nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Fact = str | int | float


@dataclass(frozen=True)
class RunStart:
    """What is known when the first step is about to run.

    step      optimizer steps done already: 0, or where a resumed run goes on
    steps     optimizer steps of the whole run
    facts     what training resolved for this machine: device, dtype, world, micro_batch, kernels, optimizer arithmetic, datasheet peak, …
    data      the data's own summary: source, fingerprint, documents, tokens, tokenizer
    """

    step: int
    steps: int
    facts: dict[str, Fact]
    data: dict[str, Fact]


class Tracker(Protocol):
    """Where metrics, files and texts of one run go. Called from the training thread, so that nothing here may wait for a server."""

    def start(self, info: RunStart) -> None:
        """The run begins, or goes on after an interruption."""

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Numbers of one step. A resumed run repeats the steps after its last checkpoint, bit for bit."""

    def vectors(self, step: int, values: dict[str, list[float]]) -> None:
        """Vectors that a validation measured, for pictures: the load of each expert, the decay of each head."""

    def artifact(self, path: Path, folder: str = "") -> None:
        """A file or folder that belongs to the run."""

    def text(self, text: str, name: str) -> None:
        """A text that belongs to the run, under this file name."""

    def finish(self, status: str) -> None:
        """The run ends: "finished", "stopped", "diverged" or "failed"."""


class NullTracker:
    """Tracks nothing."""

    def start(self, info: RunStart) -> None: ...

    def metrics(self, step: int, values: dict[str, float]) -> None: ...

    def vectors(self, step: int, values: dict[str, list[float]]) -> None: ...

    def artifact(self, path: Path, folder: str = "") -> None: ...

    def text(self, text: str, name: str) -> None: ...

    def finish(self, status: str) -> None: ...
