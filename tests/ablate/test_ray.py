"""A local Ray cluster, started here: the same numbers, and a run that goes on when its process is killed."""

import json
import os
import signal
import threading
import time

import pytest

from hymo.ablate.conduct import make_specs
from hymo.ablate.engine import collect
from hymo.ablate.ray import RayEngine
from hymo.ablate.store import Status, Store
from hymo.errors import MissingExtra
from tests.ablate.conftest import Inline

pytest.importorskip("ray", reason="needs hymo[ray]")


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_gives_the_same_numbers_and_survives_a_killed_worker(plan_of, site, tmp_path):
    plan = plan_of(only=["swap"], overrides=["train.steps=40", "run.checkpoint_every=4"])
    store = Store(tmp_path / "ray")
    specs = [spec for at, spec in make_specs(plan, site, tmp_path / "a").items() if at[1] == 0]

    def kill():
        while not [*store.root.glob("runs/*/checkpoints/step-*")]:
            time.sleep(0.05)
        for claim in store.root.glob("runs/*/claim.json"):
            if not (claim.parent / "outcome.json").exists():
                os.kill(json.loads(claim.read_text())["pid"], signal.SIGKILL)
                return

    death = threading.Thread(target=kill)
    death.start()
    RayEngine(store, jobs=1, address=None, gpus=0)(specs, "session", lambda: None)
    death.join()
    found = collect(store, specs, "session")
    Inline(site.store)(specs, "session", lambda: None)
    alone = collect(site.store, specs, "session")
    for spec in specs:
        assert found[spec.key].status == Status.FINISHED
        assert found[spec.key].metrics == alone[spec.key].metrics
        assert found[spec.key].curve == alone[spec.key].curve


def test_ray_that_is_not_installed_is_a_missing_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'hymo\[ray\]'"):
        RayEngine(Store(tmp_path), 1, None, 0)
