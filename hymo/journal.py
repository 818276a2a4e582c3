"""A run's journal: everything the run has to tell, one JSON object a line, on the local disk before it is sent anywhere.

A metric is a (name, step) pair and is written once: a resumed run repeats the steps after its last checkpoint, and those that are on record already
are left out. A line is on record when it ends in a newline; a process killed in the middle of one leaves a torn tail, which the next one cuts off.
A disk that is full delays the journal and stops nothing: lines wait in memory and go out with the next one that fits.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hymo.errors import HymoError

Event = dict[str, Any]
KEYS = {  # what an event of a kind holds at least
    "start": {"uid", "tracking", "experiment", "name", "parent", "params", "tags", "dataset", "time"},
    "metrics": {"step", "values", "time"},
    "vectors": {"step", "values", "time"},
    "artifact": {"path", "folder", "time"},
    "finish": {"status", "tags", "time"},
}


class Journal:
    """Append to `run_dir/journal.jsonl`. One process writes it; any may read it."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "journal.jsonl"
        run_dir.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._end = 0
        self._last_step: dict[str, int] = {}
        self._waiting: list[bytes] = []
        self.uid: str | None = None
        for event, end in read(self.path):
            self._end = end
            if event["event"] in ("metrics", "vectors"):
                self._last_step.update(dict.fromkeys(event["values"], event["step"]))
            elif event["event"] == "start":
                self.uid = event["uid"]
        os.ftruncate(self._file, self._end)

    def append(self, event: str, **values: Any) -> None:
        """Put one event on record, stamped with the time in milliseconds."""
        self._waiting.append(json.dumps({"event": event, "time": time.time_ns() // 1_000_000, **values}, ensure_ascii=False).encode() + b"\n")
        lines = b"".join(self._waiting)
        try:
            written = os.write(self._file, lines)
            if written < len(lines):
                raise OSError("the disk took a part only")
        except OSError as error:
            os.ftruncate(self._file, self._end)
            if len(self._waiting) == 1:
                warnings.warn(f"{self.path} cannot be written ({error}); training goes on and its lines wait in memory", RuntimeWarning, stacklevel=2)
            return
        self._end += written
        self._waiting.clear()

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Record the metrics of a step, those of them that are not on record yet."""
        self._once("metrics", step, {name: float(value) for name, value in values.items()})

    def vectors(self, step: int, values: dict[str, list[float]]) -> None:
        """Likewise for vectors: they stay here, for pictures, and are sent nowhere."""
        self._once("vectors", step, values)

    def _once(self, event: str, step: int, values: Mapping[str, Any]) -> None:
        fresh = {name: value for name, value in values.items() if step > self._last_step.get(name, -1)}
        if fresh:
            self._last_step.update(dict.fromkeys(fresh, step))
            self.append(event, step=step, values=fresh)

    def close(self) -> None:
        """Bring the file to the disk itself and let it go."""
        os.fsync(self._file)
        os.close(self._file)


def read(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """Every whole line from byte `offset` on, with the offset after it. A torn last line is left for later."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
                if not KEYS[event["event"]] <= event.keys():
                    raise ValueError
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                raise HymoError(
                    f"a journal must hold an event a line, but {str(path)!r} does not at byte {offset}: the file was damaged; cut it there "
                    f"(truncate -s {offset} FILE) to go on with what stands before"
                ) from None
            offset += len(line)
            yield event, offset
