import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from hymo.cli.runs import folder_of
from hymo.errors import HymoError
from hymo.tracking import MlflowTracker


def make(folder, store="none", status="finished"):
    run = MlflowTracker(None, folder, tracking=store)
    run.start()
    run.metrics(1, {"val/loss": 2.5, "val/bpb": float("nan")})
    run.finish(status)
    (folder / "recipe.yaml").touch()
    return run


def test_runs_are_listed_with_where_they_stand(hymo, tmp_path):
    assert hymo("runs").out == "no runs in runs/ yet; `hymo run` makes one\n"
    make(tmp_path / "runs" / "a")
    make(tmp_path / "runs" / "b", status="stopped")
    head, first, second = hymo("runs").out.splitlines()
    assert head.split() == ["run", "started", "status", "step", "val", "loss", "val", "bpb", "mlflow", "run"]
    assert first.split()[0] == "a"
    assert "2.5000" in first
    assert second.split()[3] == "stopped"
    machine = [json.loads(line) for line in hymo("runs", "--json").out.splitlines()]
    assert [(run["name"], run["metrics"]) for run in machine] == [(name, {"val/loss": 2.5, "val/bpb": None}) for name in "ab"]


def test_sync_sends_what_is_left_and_says_what_cannot_be_sent(hymo, tmp_path, empty_store, monkeypatch):
    monkeypatch.setattr("hymo.tracking.PATIENCE_S", 0.1)
    monkeypatch.setattr("hymo.tracking.PAUSE_S", 0.1)
    (tmp_path / "file").touch()
    make(tmp_path / "runs" / "a", f"sqlite:///{tmp_path}/file/mlflow.db")
    blocked = hymo("sync")
    assert blocked.code == 2
    assert blocked.out.startswith("a: not sent, ")
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    shutil.copy(empty_store, tmp_path / "file")
    assert hymo("sync").out == "a: 3 lines sent\n"
    assert hymo("sync").out == "nothing to send from runs/\n"


def test_a_run_folder_without_its_recipe_is_refused(tmp_path):
    make(tmp_path / "a")
    (tmp_path / "a" / "recipe.yaml").unlink()
    with pytest.raises(HymoError, match=r"a run folder must hold recipe\.yaml"):
        folder_of("a", tmp_path)


def test_an_mlflow_id_is_looked_up_where_the_run_folder_is_elsewhere(tmp_path, store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run = make(tmp_path / "scratch" / "a", store)
    run_id = run.shipper.sent["run_id"]
    assert folder_of(run_id, tmp_path / "runs") == tmp_path / "scratch" / "a"
    with pytest.raises(HymoError, match="known to this folder or to MLflow"):
        folder_of("0" * 32, tmp_path / "runs")


def test_a_port_in_use_is_refused(hymo):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = hymo("ui", "--port", str(port))
    assert found.code == 2
    assert f"the port must be free, but got port={port}" in found.err


def test_the_page_is_served_on_loopback_and_ends_whole(tmp_path, store):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    make(tmp_path / "runs" / "a", store)
    command = [sys.executable, "-m", "hymo", "ui", "--tracking", store, "--port", str(port)]
    ui = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert ui.stdout.readline().startswith(f"MLflow on {store}")
        address = f"http://127.0.0.1:{port}"
        assert ui.stdout.readline() == f"open {address}/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=hymo\n"
        until = time.monotonic() + 200
        while True:
            try:
                with urllib.request.urlopen(f"{address}/health") as answer:
                    assert answer.read() == b"OK"
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.2)
    finally:
        ui.terminate()
        ui.stdout.close()
    assert ui.wait(timeout=30) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
