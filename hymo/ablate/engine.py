"""Running the runs of a plan on one machine: worker processes that claim runs one by one and may die at any moment.

Each worker is a fresh process with the plan's own number of threads, whatever `--jobs`, so losses depend on neither. A run is claimed through the
operating system's lock on a file: two commands on one store share the work, and the claim of a dead process is free at once. A worker that dies
is replaced, and its run goes on from its last checkpoint; after RETRIES deaths the run is given up, and the others finish.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from hymo.ablate.store import Outcome, RunSpec, Status, Store, write_json

RETRIES = 2
POLL_S = 0.2
PATIENCE_S = 60.0  # for a worker that was asked to stop to write its checkpoint


class Engine(Protocol):
    """Whatever can bring runs to their outcome."""

    def __call__(self, specs: Sequence[RunSpec], session: str, progress: Callable[[], None]) -> None:
        """Return when every run has an outcome or, in this session, a failure. `progress` is called several times a second."""


def new_session() -> str:
    """A name for one command's life: failures count within it."""
    return uuid.uuid4().hex


class LocalEngine:
    """`jobs` worker processes on this machine."""

    def __init__(self, store: Store, jobs: int) -> None:
        self.store, self.jobs = store, jobs
        self._kills = memory_kills()

    def __call__(self, specs: Sequence[RunSpec], session: str, progress: Callable[[], None]) -> None:
        waiting = [spec for spec in specs if self.store.resolved(spec.key, session) is None]
        if not waiting:
            return
        deaths: Counter[str] = Counter()
        work = self.store.root / "sessions" / f"{session}.json"
        write_json(work, [spec.key for spec in waiting])
        for spec in waiting:
            self.store.write_spec(spec)
        with self._workers(work, session, min(self.jobs, len(waiting))) as workers:
            while workers:
                time.sleep(POLL_S)
                progress()
                for index, worker in enumerate(list(workers)):
                    code = worker.poll()
                    if code is None:
                        continue
                    workers.remove(worker)
                    if code != 0:
                        self._bury(worker.pid, code, waiting, session, deaths)
                    if any(self.store.resolved(spec.key, session) is None for spec in waiting) and code != 0:
                        workers.append(self._start(work, session, index))
        work.unlink(missing_ok=True)
        progress()

    def _bury(self, pid: int, code: int, specs: Sequence[RunSpec], session: str, deaths: Counter[str]) -> None:
        """Count a worker's death against the run it held, and give the run up after too many."""
        held = [spec for spec in specs if self.store.claimed_by(spec.key, pid) and self.store.resolved(spec.key, session) is None]
        status, error = obituary(code, self._kills)
        for spec in held:
            deaths[spec.key] += 1
            if deaths[spec.key] > RETRIES:
                self.store.write_failure(spec.key, session, status, f"{error}, {deaths[spec.key]} times; its log is {self.store.log(session)}")
        if not held:
            deaths["idle"] += 1
            if deaths["idle"] > RETRIES:
                for spec in specs:
                    if self.store.resolved(spec.key, session) is None:
                        words = f"a worker cannot start ({error}); its log is {self.store.log(session)}"
                        self.store.write_failure(spec.key, session, Status.FAILED, words)

    @contextmanager
    def _workers(self, work: Path, session: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
        workers = [self._start(work, session, index) for index in range(count)]
        try:
            yield workers
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.send_signal(signal.SIGTERM)
            for worker in workers:
                try:
                    worker.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    worker.kill()
                    worker.wait()

    def _start(self, work: Path, session: str, index: int) -> subprocess.Popen[bytes]:
        log = self.store.log(session)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "hymo.ablate.worker", str(self.store.root), str(work), session],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=worker_environment(),
                start_new_session=True,  # Ctrl-C reaches the command, which asks the workers to stop
            )


def worker_environment() -> dict[str, str]:
    """The environment of a worker. It finds hymo, and its blocks, where this process found them."""
    here = str(Path(__file__).resolve().parents[2])
    path = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def memory_kills() -> int | None:
    """Processes that Linux has killed since it booted because memory ran out; None where it does not say."""
    try:
        counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(counters["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def obituary(code: int, kills_before: int | None) -> tuple[Status, str]:
    """What an exit code says. Whether a SIGKILL was the kernel's, for want of memory, its counter tells: `kills_before`, and now."""
    if code == -signal.SIGKILL:
        kills = memory_kills()
        if kills is None or kills_before is None:
            return Status.OUT_OF_MEMORY, "its process was killed (SIGKILL, as the kernel does when memory runs out)"
        if kills > kills_before:
            return Status.OUT_OF_MEMORY, "its process was killed by the kernel (SIGKILL), which had run out of memory"
        return Status.FAILED, "its process was killed by somebody (SIGKILL); the kernel had not run out of memory"
    if code < 0:
        return Status.FAILED, f"its process died of {signal.Signals(-code).name}"
    return Status.FAILED, f"its process left with exit code {code}"


def collect(store: Store, specs: Sequence[RunSpec], session: str) -> dict[str, Outcome]:
    """The outcomes and failures that are there, by key."""
    found = ((spec.key, store.resolved(spec.key, session)) for spec in specs)
    return {key: outcome for key, outcome in found if outcome is not None}
