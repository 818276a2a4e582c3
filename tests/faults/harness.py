"""Runs of the real `hymo` command in folders of their own, killed or hindered from outside, and what is left of them on the disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.faults.zygote import PHASES, RECORD

MEASURED = ("speed/", "memory/")        # metrics that differ from run to run
EVERY, STEPS = 3, 10        # steps between checkpoints, steps of a run
FAST = (
    "model.pattern=MG", "model.d_model=16", "model.layers.M.ffn.inter_dim=16", "model.layers.G.mixer.d_inner=16", "model.mtp.inter_dim=16",
    f"train.steps={STEPS}", "train.seq_len=32", "train.tokens_per_step=128", "train.micro_batch=4", "train.threads=1", "train.device=cpu",
    "eval.tokens=256", "eval.every=4", f"run.checkpoint_every={EVERY}", "data.max_epochs=99",
)


@dataclass(frozen=True)
class Seen:
    """One phase of one process."""

    entered: int
    left: int
    inside: int
    seconds: float


class Zygote:
    """The process that commands are forked from. One command at a time."""

    def __init__(self, cache: Path) -> None:
        env = {**os.environ, "HYMO_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TRITON_INTERPRET": "1"}
        env.pop("MLFLOW_TRACKING_URI", None)
        script = str(Path(__file__).with_name("zygote.py"))
        self.process = subprocess.Popen([sys.executable, script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, folder: Path, *argv: str, **told: Any) -> Child:
        """Begin a command in `folder`; `told` is what zygote.py's child knows besides."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"argv": argv, "folder": str(folder), **told}) + "\n")
        self.process.stdin.flush()
        return Child(self, folder, int(self.read("pid")[1]))

    def read(self, *expected: str) -> list[str]:
        """The words of its next line."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert "".join(words[:1]) in expected, f"one of {expected} must come, but got {words}"
        return words

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)


@dataclass
class Child:
    """A command that runs."""

    zygote: Zygote
    folder: Path
    pid: int
    status: int | None = None       # exit code, or minus the signal that ended it

    def wait(self) -> int:
        """Let it end by itself."""
        self.status = int(self.zygote.read("status")[1])
        return self.status

    def announced(self) -> bool:
        """Wait until it comes to what it was told to announce. False when it ended before."""
        words = self.zygote.read("now", "status")
        self.status = int(words[1]) if words[0] == "status" else None
        return self.status is None

    def signal(self, which: signal.Signals) -> int:
        """Send a signal and wait for its end. Safe when it ended meanwhile: it stays a zombie until the zygote has told us so."""
        os.kill(self.pid, which)
        return self.wait()

    @property
    def seen(self) -> dict[str, Seen]:
        """What it did, phase by phase; of a killed one up to its last moment."""
        memory = (self.folder / "watch").read_bytes()
        return {phase: Seen(*RECORD.unpack_from(memory, RECORD.size * i)) for i, phase in enumerate(PHASES)}


@dataclass
class Case:
    """A run of `hymo run WORDS` in a folder with a tracking store of its own, in as many processes as it takes."""

    zygote: Zygote
    folder: Path
    words: tuple[str, ...]
    lives: list[dict[str, Seen]] = field(default_factory=list)      # of each process that ended
    seconds: float = 0.0                                            # that the last one took

    def start(self, **told: Any) -> Child:
        """`hymo run`, or `hymo resume` once there is something to go on with."""
        known = self.run_dir
        return self.zygote.start(self.folder, *(("run", *self.words) if known is None else ("resume", known.name)), "--json", **told)

    def kill(self, phase: str, number: int, delay: float) -> bool:
        """Start, and SIGKILL `delay` seconds after `phase` is entered for the `number`th time. False when the run ended before."""
        child = self.start(announce=[[phase, number]])
        if killed := child.announced():
            time.sleep(delay)
            killed = child.signal(signal.SIGKILL) == -signal.SIGKILL
        self.lives.append(child.seen)
        return killed

    def finish(self, **told: Any) -> None:
        """Let it come to its end."""
        began = time.monotonic()
        child = self.start(**told)
        assert child.wait() == 0, self.log[-3000:]
        self.seconds = time.monotonic() - began
        self.lives.append(child.seen)

    @property
    def died_in(self) -> str:
        """What the last process was at when it ended."""
        seen = self.lives[-1]
        inside = [f"a {phase}" for phase in ("save", "validation", "step") if seen[phase].inside]
        return inside[0] if inside else "between steps" if seen["step"].entered else "the start"

    @property
    def steps_entered(self) -> int:
        """Optimizer steps that its processes began, all together."""
        return sum(life["step"].entered for life in self.lives)

    # -- what is left of it -------------------------------------------------------------------------------------------------------
    @property
    def run_dir(self) -> Path | None:
        """The run's folder, once there is a recipe in it to go on with."""
        found = sorted(self.folder.glob("runs/*/recipe.yaml"))
        assert len(found) < 2, "one run was asked for"
        return found[0].parent if found else None

    @property
    def log(self) -> str:
        """What its processes printed."""
        return (self.folder / "log").read_text()

    def in_run(self, pattern: str) -> list[Path]:
        """Files of the run, sorted."""
        assert self.run_dir is not None
        return sorted(self.run_dir.glob(pattern))

    def progress(self) -> dict[str, Any]:
        """How far the run came, and every loss."""
        found: dict[str, Any] = json.loads(self.in_run("checkpoints/step-*/state.json")[-1].read_text())["progress"]
        return found

    def tensors(self) -> dict[str, str]:
        """Checksums of weights, moments and random generators in the newest checkpoint."""
        files = json.loads(self.in_run("checkpoints/step-*/manifest.json")[-1].read_text())["files"]
        return {name: fact["sha256"] for name, fact in files.items() if name.endswith(".safetensors")}

    def doubled(self) -> dict[tuple[str, int], int]:
        """Metrics of a step that the journal holds more than once."""
        events = [json.loads(line) for path in self.in_run("journal.jsonl") for line in path.read_text().splitlines()]
        times = Counter((name, event["step"]) for event in events if event["event"] == "metrics" for name in event["values"])
        return {key: count for key, count in times.items() if count > 1}

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        """Rows of the tracking store, sorted."""
        store = sqlite3.connect(self.folder / "mlflow.db")
        try:
            return sorted(store.execute(question).fetchall())
        finally:
            store.close()

    def metrics(self) -> list[tuple[Any, ...]]:
        """(name, step, value, is NaN) of every metric row that the server has; measured ones without their value."""
        rows = self.ask("select key, step, value, is_nan from metrics")
        return sorted((name, step, 0.0 if name.startswith(MEASURED) else value, nan) for name, step, value, nan in rows)

    def record(self) -> dict[str, list[Any]]:
        """Everything else that the server has of the run, but what differs from run to run."""
        return {
            "runs": self.ask("select status, lifecycle_stage from runs"),
            "params": self.ask("select key from params"),
            "tags": self.ask("select key from tags"),
            "datasets": self.ask("select name, digest from datasets join inputs on source_id = dataset_uuid"),
            "artifacts": sorted(path.name for path in self.folder.glob("mlartifacts/**/*") if path.is_file()),
        }


def prepare(folder: Path, empty_store: Path) -> Path:
    """A folder for a case, with a store whose schema exists."""
    folder.mkdir(parents=True)
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


def compare(case: Case, whole: Case) -> None:
    """Nothing is lost, nothing is doubled, nothing differs from the run that nothing happened to."""
    assert case.progress() == whole.progress()
    assert case.tensors() == whole.tensors()
    assert not case.doubled()
    assert case.metrics() == whole.metrics()
    assert case.record() == whole.record()
