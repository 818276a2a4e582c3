import json
import subprocess
import sys

import pytest

from hymo.ablate.store import Outcome, RunSpec, Status, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def test_an_outcome_comes_back_exactly(store):
    outcome = Outcome(Status.FINISHED, {"val/loss": 0.1 + 0.2}, [(1, 1 / 3)], [(2, 2 / 3)], [(1, 5.0), (2, 4.0)], None, 1.5)
    store.write_outcome("k", outcome)
    assert store.outcome("k") == outcome
    assert store.outcome("other") is None


def test_a_failure_is_final_for_its_session_only(store):
    store.write_failure("k", "one", Status.FAILED, "why")
    assert store.resolved("k", "one") == Outcome(Status.FAILED, error="why")
    assert store.resolved("k", "two") is None
    store.write_outcome("k", Outcome(Status.FINISHED))
    assert store.resolved("k", "one").status == Status.FINISHED
    assert store.failure("k", "one") is None


def test_a_spec_comes_back(store):
    spec = RunSpec("k", "arm seed 0", {"a": 1}, 3, 1, "above", {"x": "y"})
    store.write_spec(spec)
    assert store.spec("k") == spec


HOLD = """
import sys, time
from pathlib import Path
from hymo.ablate.store import Store
store = Store(Path(sys.argv[1]))
with store.claim("k") as mine, store.device(alone=False):
    print(mine, flush=True)
    time.sleep(60)
"""


def test_a_claim_is_exclusive_and_dies_with_its_process(store):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline().strip() == "True"
    with store.claim("k") as mine:
        assert not mine
    assert store.claimed_by("k", holder.pid)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with store.claim("k") as mine:
        assert mine
    with store.device(alone=True):
        pass  # free again, too


def test_files_appear_whole(store, monkeypatch):
    store.write_failure("k", "s", Status.FAILED, "first")
    with pytest.raises(TypeError):
        store.write_failure("k", "s", Status.FAILED, object())
    assert json.loads((store.run("k") / "failure.json").read_text())["error"] == "first"


def test_forgetting_leaves_nothing_to_reuse(store):
    store.write_outcome("k", Outcome(Status.FINISHED))
    (store.run("k") / "checkpoints" / "step-1").mkdir(parents=True)
    store.forget("k")
    assert store.outcome("k") is None
    assert not (store.run("k") / "checkpoints").exists()
