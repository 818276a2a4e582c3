"""The folder that keeps every run, by key, and that any number of processes may share.

    ablations/
        runs/<key>/         spec.json       what to run
                            claim           locked by the process that runs it; the lock dies with the process
                            claim.json      who holds it
                            outcome.json    the result, written once, whole
                            failure.json    why there is none, and in which session
                            checkpoints/    where a killed run goes on
        speed/<key>.json    tokens/s and peak memory of an arm, measured alone
        sessions/           work lists and logs of the commands
        device.lock         shared by workers that train, held alone by one that measures
        <ablation>/         result.json, report.html, and the journals of the runs above the seeds in the tracker's tree

Files appear whole (written beside their place, then renamed), so a reader never sees half of one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


class Status(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    DIVERGED = "diverged"  # a result like any other: it is kept, and counts
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"


@dataclass(frozen=True)
class RunSpec:
    """One run, complete: another process, or another host, needs nothing else."""

    key: str
    name: str  # "mla_pos0/swap seed 1", for people
    recipe: dict[str, Any]  # the run's own seed in it
    init_seed: int
    threads: int
    above: str  # folder of the run above it in the tracker's tree
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings by the probe's name
    ingredients: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came of a run. Metrics are exact; `seconds` and the like are measured and take no part in a verdict."""

    status: Status
    metrics: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)  # (step, training loss of the main head)
    validation: list[tuple[int, float]] = field(default_factory=list)  # (step, primary held-out loss)
    by_position: list[tuple[int, float]] = field(default_factory=list)  # (context length from which a log2 bucket begins, loss)
    probed: list[str] = field(default_factory=list)  # the metrics that stand for the probes
    left_out: dict[str, str] = field(default_factory=dict)  # probes that could not be made, and why
    error: str | None = None
    seconds: float = 0.0


class Store:
    """The folder. Nothing is read into memory that another process might change."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    # -- runs ---------------------------------------------------------------------------------------------------------------------
    def run(self, key: str) -> Path:
        """Folder of a run."""
        return self.root / "runs" / key

    def outcome(self, key: str) -> Outcome | None:
        """The result of a run; None while there is none."""
        raw = read_json(self.run(key) / "outcome.json")
        if raw is None:
            return None
        pairs = {name: [tuple(point) for point in raw[name]] for name in ("curve", "validation", "by_position")}
        return Outcome(**{**raw, **pairs, "status": Status(raw["status"])})

    def failure(self, key: str, session: str) -> Outcome | None:
        """Why a run failed in this session; a failure of an earlier session is not final, its run is tried again."""
        raw = read_json(self.run(key) / "failure.json")
        return Outcome(Status(raw["status"]), error=raw["error"]) if raw is not None and raw["session"] == session else None

    def resolved(self, key: str, session: str) -> Outcome | None:
        """The outcome or failure, if the run needs no more work in this session."""
        return self.outcome(key) or self.failure(key, session)

    def write_outcome(self, key: str, outcome: Outcome) -> None:
        """Put the result on record, for good."""
        write_json(self.run(key) / "outcome.json", asdict(outcome))
        (self.run(key) / "failure.json").unlink(missing_ok=True)

    def write_failure(self, key: str, session: str, status: Status, error: str) -> None:
        """Put on record why this session has no result."""
        write_json(self.run(key) / "failure.json", {"session": session, "status": status, "error": error})

    # -- specs and logs -----------------------------------------------------------------------------------------------------------
    def write_spec(self, spec: RunSpec) -> None:
        """Put down what is to be run, once."""
        if not (path := self.run(spec.key) / "spec.json").is_file():
            write_json(path, asdict(spec))

    def spec(self, key: str) -> RunSpec:
        """What is to be run."""
        return RunSpec(**read_json(self.run(key) / "spec.json"))

    def log(self, session: str) -> Path:
        """What the workers of one command print."""
        return self.root / "sessions" / f"{session}.log"

    def speed(self, key: str) -> Path:
        """Where the speed of a run's arm is kept."""
        return self.root / "speed" / f"{key}.json"

    def forget(self, key: str) -> None:
        """Let go of everything known of a run, unless a process is computing it now (`--fresh`)."""
        self.speed(key).unlink(missing_ok=True)
        with self.claim(key) as mine:
            for path in self.run(key).iterdir() if mine else ():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != "claim":
                    path.unlink()

    # -- claims -------------------------------------------------------------------------------------------------------------------
    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """True inside when this process alone holds the run; False when another one does. The operating system frees a dead holder's claim."""
        folder = self.run(key)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "claim", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
        try:
            write_json(folder / "claim.json", {"pid": os.getpid(), "host": socket.gethostname()})
            yield True
        finally:
            lock.release()

    @contextmanager
    def device(self, alone: bool) -> Iterator[None]:
        """Share the device with the other workers of the store, or have it alone. Waits; the operating system frees what a dead process held."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "device.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield

    def claimed_by(self, key: str, pid: int) -> bool:
        """Whether the last process to claim the run on this host had this id."""
        return bool(read_json(self.run(key) / "claim.json") == {"pid": pid, "host": socket.gethostname()})


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_json(path: Path) -> Any:
    """The value in a JSON file, None when there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
