"""What a run meets from outside, one fault at a time, in the real command: it goes on or says in one line why not, and nothing is lost."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hymo.train.checkpoint import open_checkpoint
from tests.faults.harness import EVERY, STEPS, Case, compare

LONG = "HYMO_KILLS" in os.environ       # under `make faults`
USERS_FAULT = 2     # exit code
FULL = 4096         # bytes: less than a checkpoint's weights, more than what a command prints


def messages(case: Case) -> list[dict[str, object]]:
    """The JSON lines that its processes printed."""
    return [json.loads(line) for line in case.log.splitlines() if line.startswith("{")]


def ended(case: Case, status: int, **told: object) -> str:
    """Run to the end that is expected, and give the last line that was printed."""
    child = case.start(**told)
    assert child.wait() == status, case.log[-3000:]
    case.lives.append(child.seen)
    assert "Traceback" not in case.log
    return case.log.splitlines()[-1]


def test_a_disk_that_fills_in_the_middle_of_a_save(make_case: Callable[..., Case], uninterrupted: Case) -> None:
    case = make_case()
    said = ended(case, USERS_FAULT, full_disk=[["save", 2, FULL]], patience=0.2)
    assert said.startswith("hymo: a checkpoint must fit on the disk, but ")
    assert "the checkpoints before it are intact" in said
    assert [path.name for path in case.in_run("checkpoints/*")] == [f"step-{EVERY:010d}"]
    assert open_checkpoint(case.in_run("checkpoints/*")[0]).step == EVERY
    case.finish()
    compare(case, uninterrupted)
    assert case.steps_entered - STEPS <= EVERY


def test_a_disk_that_is_full_for_a_while_in_the_middle_of_the_log(make_case: Callable[..., Case], uninterrupted: Case) -> None:
    """Between two saves neither the journal, nor the tracking store, nor the file behind stdout takes anything."""
    case = make_case()
    ended(case, 0, full_disk=[["step", EVERY + 1, 1], ["step", 2 * EVERY, None]])
    compare(case, uninterrupted)
    assert case.steps_entered == STEPS


def test_sigterm_saves_within_its_grace_time(make_case: Callable[..., Case], uninterrupted: Case) -> None:
    case = make_case()
    child = case.start(announce=[["step", 2]], patience=5.0)
    assert child.announced()
    began = time.monotonic()
    assert child.signal(signal.SIGTERM) == 130
    assert time.monotonic() - began < 30, "the shortest that schedulers give"
    case.lives.append(child.seen)
    steps = case.progress()["step"]
    assert steps == case.steps_entered, "the step that was running is saved, no more"
    case.finish()
    compare(case, uninterrupted)
    assert case.steps_entered == STEPS


def test_a_store_locked_by_another_process_from_start_to_end_and_synced_later(make_case: Callable[..., Case], uninterrupted: Case) -> None:
    case = make_case()
    other = sqlite3.connect(case.folder / "mlflow.db")
    other.execute("BEGIN EXCLUSIVE")
    ended(case, 0, patience=0.2)
    problem = messages(case)[-1]["tracking_problem"]
    other.rollback()
    other.close()
    assert problem
    assert case.metrics() == []
    assert case.zygote.start(case.folder, "sync").wait() == 0
    compare(case, uninterrupted)


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[None]:
    """MLflow's server on this port; killed at the end."""
    command = [sys.executable, str(Path(__file__).with_name("mlflow_server.py")), str(folder), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        try:
            yield
        finally:
            server.kill()


@pytest.mark.skipif(not LONG, reason="`make faults` runs it: the server takes its time to start")
def test_a_server_down_at_the_start_killed_in_the_middle_and_down_at_the_end(make_case: Callable[..., Case], uninterrupted: Case) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    case = make_case(f"run.tracking=http://127.0.0.1:{port}")
    child = case.start(announce=[["step", 4], ["step", 8]], hold=True, patience=0.2)
    assert child.announced()
    assert case.metrics() == [], "nobody answered so far"
    with mlflow_server(case.folder, port):
        (case.folder / "go").touch()
        assert child.announced()
        until(lambda: len(case.metrics()) > 0)
    (case.folder / "go").touch()
    assert child.wait() == 0
    case.lives.append(child.seen)
    assert messages(case)[-1]["tracking_problem"]
    assert len(case.metrics()) < len(uninterrupted.metrics())
    with mlflow_server(case.folder, port):
        assert case.zygote.start(case.folder, "sync").wait() == 0
    assert case.metrics() == uninterrupted.metrics()
    assert case.record() == uninterrupted.record()
    assert case.progress() == uninterrupted.progress()


def until(reached: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["truncated", "changed", "gone", "added"] if LONG else ["truncated"])
def test_data_that_changed_since_the_run_began_is_refused_with_both_fingerprints(
    make_case: Callable[..., Case], uninterrupted: Case, text: Path, tmp_path: Path, how: str
) -> None:
    for file in text.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    case = make_case(source=tmp_path)
    assert case.kill("step", EVERY + 2, 0.0)
    file = tmp_path / "004.txt"
    before = file.read_text()
    if how == "truncated":
        file.write_text(before[:-3])
    elif how == "changed":
        file.write_text(before.replace("state", "stale"))
    elif how == "gone":
        file.unlink()
    else:
        (tmp_path / "new.txt").write_text("more")
    said = ended(case, USERS_FAULT)
    found = re.search("the data must be what the run began with, fingerprint ([0-9a-f]{16}), but got ([0-9a-f]{16}); restore the files", said)
    assert found, said
    assert found[1] != found[2]
    assert {json.loads(path.read_text())["data"] for path in case.in_run("checkpoints/*/state.json")} == {found[1]}
    (tmp_path / "new.txt").unlink(missing_ok=True)
    file.write_text(before)
    case.finish()
    assert case.progress() == uninterrupted.progress()
