"""Worker processes, for real: deaths, two commands on one store, and losses that depend on neither."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from hymo.ablate import command, measure
from hymo.ablate import conduct as conducting
from hymo.ablate.command import Options, run
from hymo.ablate.conduct import Site, make_specs
from hymo.ablate.engine import RETRIES, LocalEngine, collect, memory_kills, obituary
from hymo.ablate.measure import measured
from hymo.ablate.store import Status, Store, read_json, write_json
from tests.ablate.conftest import Inline
from tests.ablate.test_plan import with_arms

ROOT = Path(__file__).parents[2]
MEASURED = ("tokens_per_s", "speed_ratio", "bytes_peak")


def options(tmp_path, **changed):
    """`hymo ablate order --scale full --seeds 2 --arms swap`, as an object."""
    given = {
        "words": ["order"], "scale": "full", "seeds": 2, "arms": ["swap"], "within": 1e9, "jobs": 2, "threads": 1, "on": "local", "dry_run": False,
        "fresh": False, "aa": False, "cross": False, "looks": [], "rates": (), "store": tmp_path / "ablations", **changed,
    }  # fmt: skip
    return Options(**given)


def decisive(result):
    """Everything that decides, to the last bit: what is measured, and what was reused, stay out."""
    rows = [{key: value for key, value in row.items() if key not in MEASURED} for row in result["rows"]]
    return {**result, "rows": rows, "reused": None, "folder": None}


def killed_soon(process, store):
    """Wait until the command computes, let it go on for a moment, then kill a worker in the middle of its run, and the command itself."""
    while process.poll() is None and not (claims := [*store.root.glob("runs/*/claim.json")]):
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()
    yield
    os.kill(json.loads(claims[0].read_text())["pid"], signal.SIGKILL)
    process.kill()
    process.communicate()


def test_two_commands_at_once_one_of_them_killed_end_in_the_table_of_an_undisturbed_one(write_experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(conducting, "measured", lambda store, spec: {})
    monkeypatch.setattr(conducting, "write_report", lambda path, *rest: None)
    write_experiment()
    store = Store(tmp_path / "ablations")
    words = ["ablate", "order", "--scale", "full", "--seeds", "2", "--arms", "swap", "--jobs", "1"]
    doomed = subprocess.Popen(
        [sys.executable, "-m", "hymo", *words], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    death = killed_soon(doomed, store)
    next(death)
    timer = threading.Timer(1.0, lambda: next(death, None))
    timer.start()
    screen = Console(record=True, width=160, file=io.StringIO())
    result = run(options(tmp_path), screen)
    timer.join()
    assert len([*store.root.glob("runs/*/outcome.json")]) == 4
    assert "[4/4]" in screen.export_text()

    monkeypatch.setattr(command, "LocalEngine", lambda store, jobs: Inline(store))
    undisturbed = run(options(tmp_path, store=tmp_path / "alone", jobs=1), Console(file=io.StringIO()))
    assert decisive(result) == decisive(undisturbed)  # one process or three, killed or not: the same bits

    screen = Console(record=True, width=160, file=io.StringIO())
    again = run(options(tmp_path), screen)
    assert again["reused"] == 4
    assert "4 of 4 runs are in the store already and are reused" in screen.export_text()
    assert decisive(again) == decisive(result)


def test_a_run_whose_worker_always_dies_is_given_up_and_the_others_finish(plan_of, tmp_path):
    """A block whose forward pass kills its process, as the kernel's memory killer would."""
    block = tmp_path / "deadly.py"
    block.write_text(
        "import os, signal\n"
        "from typing import Literal\n"
        "import hymo\n"
        "@hymo.register('ffn', 'deadly')\n"
        "class Deadly(hymo.Block):\n"
        "    class Config(hymo.BlockConfig):\n"
        "        type: Literal['deadly'] = 'deadly'\n"
        "    def mixing_flops(self, context): return 0.0\n"
        "    def state_elems(self, context): return 0\n"
        "    def forward(self, x_BTD, ctx):\n"
        "        if x_BTD.device.type != 'meta': os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return x_BTD\n"
    )
    text = with_arms("deadly: {blocks: [deadly.py], model.layers.M.ffn: deadly}", "swap: {model.swap: [[0, 1]]}", factor="[ffn, order]")
    plan = plan_of(text)
    store = Store(tmp_path / "ablations")
    engine = LocalEngine(store, jobs=1)
    specs = make_specs(plan, Site(store, engine, "cpu", 1, print, lambda specs, session: lambda: None), tmp_path / "a")
    wanted = [specs[arm, 0] for arm in ("deadly", "swap")]
    engine(wanted, "session", lambda: None)
    found = collect(store, wanted, "session")
    assert found[wanted[0].key].status == Status.FAILED, found
    assert "the kernel had not run out of memory" in found[wanted[0].key].error
    assert f"{RETRIES + 1} times" in found[wanted[0].key].error
    assert found[wanted[1].key].status == Status.FINISHED


def test_a_speed_is_measured_alone_and_kept(plan_of, site, monkeypatch):
    monkeypatch.setattr(measure, "ALONE", 0.0)      # whatever else runs on this machine
    spec = make_specs(plan_of(), site, site.store.root / "a")["swap", 0]
    first = measured(site.store, spec)
    assert first["tokens_per_s"] > 0
    assert first["bytes_peak"] > 1e6
    assert 0 < first["processor"] <= 1
    assert measured(site.store, spec) == first == read_json(site.store.speed(spec.key))


def test_a_speed_measured_beside_other_programs_is_measured_again(plan_of, site):
    spec = make_specs(plan_of(), site, site.store.root / "a")["swap", 0]
    write_json(site.store.speed(spec.key), {"tokens_per_s": 0.001, "bytes_peak": 1.0, "processor": 0.5})
    assert measured(site.store, spec)["tokens_per_s"] > 0.001


@pytest.mark.parametrize(
    ("code", "kills", "status", "words"),
    [
        (-9, (3, 4), Status.OUT_OF_MEMORY, "had run out of memory"),
        (-9, (3, 3), Status.FAILED, "by somebody"),
        (-9, (None, None), Status.OUT_OF_MEMORY, "SIGKILL, as the kernel does"),
        (-11, (3, 4), Status.FAILED, "SIGSEGV"),
        (3, (3, 3), Status.FAILED, "exit code 3"),
    ],
)
def test_obituaries(monkeypatch, code, kills, status, words):
    before, now = kills
    monkeypatch.setattr("hymo.ablate.engine.memory_kills", lambda: now)
    assert obituary(code, before)[0] == status
    assert words in obituary(code, before)[1]


def test_the_kernel_counts_what_it_killed():
    counted = int(re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)[1])
    assert memory_kills() == counted
