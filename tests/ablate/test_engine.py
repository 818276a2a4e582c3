"""Worker processes, for real: deaths, two commands on one store, and losses that depend on neither."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hymo.ablate.conduct import make_specs
from hymo.ablate.engine import RETRIES, LocalEngine, collect, obituary
from hymo.ablate.measure import measured
from hymo.ablate.store import Status, Store, read_json
from tests.ablate.conftest import Inline

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "hymo", "ablate", "order", "--scale", "full", "--seeds", "2", "--jobs", "2", "--json"]


def start():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return json.loads(out), err


def numbers(result):
    """Everything that decides, to the last bit: what is measured stays out."""
    measured_columns = ("tokens_per_s", "speed_ratio", "bytes_peak")
    rows = [{key: value for key, value in row.items() if key not in measured_columns} for row in result["rows"]]
    return {**{key: value for key, value in result.items() if key != "reused"}, "rows": rows}


def test_two_commands_at_once_one_of_them_killed_end_in_the_table_of_an_undisturbed_one(write_experiment, plan_of, tmp_path):
    write_experiment()
    store = Store(tmp_path / "ablations")
    doomed = start()
    while doomed.poll() is None and not (claims := [*store.root.glob("runs/*/claim.json")]):
        time.sleep(0.05)
    other = start()
    worker = json.loads(claims[0].read_text())["pid"]
    os.kill(worker, signal.SIGKILL)  # one worker, in the middle of its run
    doomed.kill()  # and the command that it belonged to
    doomed.communicate()
    result, said = finish(other)
    assert len([*store.root.glob("runs/*/outcome.json")]) == 6
    assert said.count("[6/6]") == 1

    plan = plan_of()
    alone = Store(tmp_path / "alone")
    from dataclasses import replace

    from hymo.ablate.conduct import Site
    from hymo.ablate.result import summarise

    site = Site(alone, Inline(alone), "cpu", 1, print, lambda specs, session: lambda: None)
    specs = make_specs(plan, site, tmp_path / "alone" / "a")
    Inline(alone)(list(specs.values()), "s", lambda: None)
    outcomes = {at: alone.outcome(spec.key) for at, spec in specs.items()}
    undisturbed = summarise(replace(plan, looks=()), outcomes, {}, 0)
    assert numbers(result) == numbers(json.loads(json.dumps(undisturbed)))

    began = time.monotonic()
    again, said = finish(start())
    assert again["reused"] == 6
    assert "6 of 6 runs are in the store already" in said
    assert numbers(again) == numbers(result)
    assert time.monotonic() - began < 60
    assert all(row["tokens_per_s"] > 0 and row["bytes_peak"] > 0 for row in again["rows"])


def test_a_run_whose_worker_always_dies_is_given_up_and_the_others_finish(write_experiment, plan_of, tmp_path, monkeypatch):
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
        "        if x_BTD.device.type != 'meta' and not os.environ.get('SPARE'): os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return x_BTD\n"
    )
    from tests.ablate.test_plan import with_arms

    text = with_arms("deadly: {blocks: [deadly.py], model.layers.M.ffn: deadly}", "swap: {model.swap: [[0, 1]]}", factor="[ffn, order]")
    plan = plan_of(text)
    store = Store(tmp_path / "ablations")
    from hymo.ablate.conduct import Site

    engine = LocalEngine(store, jobs=1)
    specs = make_specs(plan, Site(store, engine, "cpu", 1, print, lambda specs, session: lambda: None), tmp_path / "a")
    wanted = [specs[arm, 0] for arm in ("deadly", "swap")]
    engine(wanted, "session", lambda: None)
    found = collect(store, wanted, "session")
    assert found[wanted[0].key].status == Status.OUT_OF_MEMORY, found
    assert f"{RETRIES + 1} times" in found[wanted[0].key].error
    assert found[wanted[1].key].status == Status.FINISHED


def test_a_speed_is_measured_alone_and_kept(plan_of, site):
    spec = make_specs(plan_of(), site, site.store.root / "a")["swap", 0]
    first = measured(site.store, spec)
    assert first["tokens_per_s"] > 0
    assert first["bytes_peak"] > 1e7
    assert measured(site.store, spec) == first == read_json(site.store.speed(spec.key))


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [(-9, Status.OUT_OF_MEMORY, "SIGKILL"), (-11, Status.FAILED, "SIGSEGV"), (3, Status.FAILED, "exit code 3")],
)
def test_obituaries(code, status, words):
    assert obituary(code)[0] == status
    assert words in obituary(code)[1]
