"""A process that has imported everything and is copied for each command: `hymo` as a real process of its own, without the seconds that imports take.

It reads one JSON object a line and writes lines: `pid N`, then `now` when the child comes to what it was told to announce, then `status N` (the exit
code, or minus the signal). Of the object:

    argv, folder    the command line, and where it runs; what it prints goes to the file `log` there
    announce        [[phase, n], …]: say `now` on entering this phase for the n-th time, and if `hold` is given wait there for a file `go`
    full_disk       [[phase, n, bytes], …]: from the n-th entry on no file may grow beyond `bytes` (null: any size)
    patience        seconds that the tracker gives a server at the end; by default so many that no load on this machine is taken for a server's fault

hymo knows nothing of it: its functions are wrapped here, in the child.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PHASES = ("start", "step", "save", "validation", "flush")
RECORD = struct.Struct("<IIId")     # of each phase: times entered, times left, whether inside now, seconds inside


class Watch:
    """What the child is doing, in a mapped file that outlives it."""

    def __init__(self, path: Path, at_entry: Callable[[str, int], None]) -> None:
        path.write_bytes(bytes(RECORD.size * len(PHASES)))
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.at_entry = at_entry

    def enter(self, phase: str) -> float:
        entered, left, _, seconds = self.record(phase)
        self.record(phase, entered + 1, left, 1, seconds)
        self.at_entry(phase, entered + 1)
        return time.perf_counter()

    def leave(self, phase: str, began: float) -> None:
        entered, left, _, seconds = self.record(phase)
        self.record(phase, entered, left + 1, 0, seconds + time.perf_counter() - began)

    def record(self, phase: str, *values: float) -> tuple[Any, ...]:
        """The phase's record, after `values` are written to it."""
        at = RECORD.size * PHASES.index(phase)
        if values:
            RECORD.pack_into(self.memory, at, *values)
        return RECORD.unpack_from(self.memory, at)

    def around(self, owner: type, name: str, phase: str) -> None:
        """Have every call of owner.name counted and timed as `phase`."""
        inner = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            began = self.enter(phase)
            try:
                return inner(*args, **kwargs)
            finally:
                self.leave(phase, began)

        setattr(owner, name, watched)


def become(told: dict[str, Any], say: Callable[[str], None]) -> None:
    """Be the `hymo` command."""
    from hymo import tracking
    from hymo.cli import main
    from hymo.train.loop import Run
    from hymo.train.step import Stepper

    folder = Path(told["folder"])
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tracking.PAUSE_S, tracking.PATIENCE_S = 0.05, told.get("patience", 600.0)

    def at_entry(phase: str, number: int) -> None:
        if [phase, number] in told.get("announce", ()):
            say("now")
            while told.get("hold") and not Path("go").exists():
                time.sleep(0.01)
            Path("go").unlink(missing_ok=True)
        for where, which, size in told.get("full_disk", ()):
            if (phase, number) == (where, which):
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY if size is None else size, resource.RLIM_INFINITY))

    watch = Watch(folder / "watch", at_entry)
    watch.around(Stepper, "__call__", "step")
    watch.around(Run, "save", "save")
    watch.around(Run, "validate", "validation")
    watch.around(tracking.Shipper, "_send", "flush")
    watch.enter("start")
    sys.argv = ["hymo", *told["argv"]]
    main()


def serve() -> None:
    """Import, then copy this process for each command until stdin ends."""
    import torch
    import torch._dynamo  # torch's optimizers import it when the first one is made
    from mlflow.entities import Dataset, Metric  # noqa: F401
    from mlflow.tracking import MlflowClient  # noqa: F401
    from mlflow.tracking.context.registry import resolve_tags  # noqa: F401

    import hymo.cli.runs
    import hymo.display
    import hymo.sizing
    import hymo.train.loop  # noqa: F401
    from hymo.registry import discover

    torch.set_num_threads(1)
    discover()
    out = os.dup(1)

    def say(line: str) -> None:
        os.write(out, f"{line}\n".encode())

    pid = 0
    for line in sys.stdin:
        told = json.loads(line)
        if pid:
            os.waitpid(pid, 0)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                become(told, say)
                code = 0
            except SystemExit as leaving:
                code = int(leaving.code or 0)
            finally:
                if code == 1:
                    sys.excepthook(*sys.exc_info())
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        say(f"pid {pid}")
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)       # it keeps its number until the next command: a late SIGKILL hits nobody else
        assert ended is not None
        say(f"status {ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status}")


if __name__ == "__main__":
    serve()
