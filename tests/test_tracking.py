import json
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from hymo import tracking
from hymo.errors import HymoError
from hymo.journal import KEYS
from hymo.tracking import MlflowTracker, Shipper, batches, client, sync


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(tracking, "PAUSE_S", 0.02)


def tracker(folder: Path, store: str, **more) -> MlflowTracker:
    return MlflowTracker(None, folder, tracking=store, **more)


def history(store: str, folder: Path, name: str) -> list[tuple[int, float]]:
    run = Shipper(folder).sent["run_id"]
    return sorted((m.step, m.value) for m in client(store).get_metric_history(run, name))


def until(reached, seconds=20.0):
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)


def test_a_run_with_its_metrics_files_and_end(store, tmp_path):
    run = tracker(tmp_path / "runs" / "a", store, name="readable", tags={"hymo.scale": "tiny"})
    run.start()
    for step in range(1, 31):
        run.metrics(step, {"loss/main": 5.0 - step / 10, "lr/adamw": 1e-3})
    run.text("# report", "notes/report.md")
    run.finish("finished", {"hymo.verdict": "better"})
    assert run.problem is None
    [found] = client(store).search_runs(["1"])
    assert (found.info.run_name, found.info.status) == ("readable", "FINISHED")
    assert found.data.tags["hymo.scale"] == "tiny"
    assert found.data.tags["hymo.verdict"] == "better"
    assert history(store, run.run_dir, "loss/main") == [(s, 5.0 - s / 10) for s in range(1, 31)]
    assert run.link == f"http://127.0.0.1:5000/#/experiments/1/runs/{found.info.run_id}"
    artifacts = Path(store.removeprefix("sqlite:///")).parent / "mlartifacts" / "hymo" / found.info.run_id / "artifacts"
    assert (artifacts / "notes" / "report.md").read_text() == "# report"


def test_a_lost_note_of_what_was_sent_doubles_nothing(store, tmp_path):
    run = tracker(tmp_path / "a", store)
    run.start()
    for step in range(1, 6):
        run.metrics(step, {"loss/main": float(step)})
    run.finish("finished")
    (tmp_path / "a" / "sent.json").unlink()
    assert Shipper(tmp_path / "a").ship() == 7
    assert history(store, run.run_dir, "loss/main") == [(s, float(s)) for s in range(1, 6)]
    assert len(client(store).search_runs(["1"])) == 1


@pytest.mark.parametrize("note", ["", "[]", "3", "{", '{"offset": 99}', '{"offset": "x"}', '{"offset": 10000000, "run_id": "a"}', "\0" * 40])
def test_a_damaged_note_counts_for_nothing(tmp_path, note):
    shipper = Shipper(tmp_path)
    shipper.journal.write_text("x" * 100)
    shipper.note.write_text(note)
    assert shipper.sent == {"offset": 0}
    shipper.note.write_text('{"offset": 99, "run_id": "a"}')
    assert shipper.sent["offset"] == 99


def test_a_server_down_at_the_start_stops_nothing_and_gets_everything_by_sync(store, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.3)
    folder = Path(store.removeprefix("sqlite:///")).parent
    folder.rename(tmp_path / "away")
    folder.touch()  # in its place, so that nothing can be made there
    run = tracker(tmp_path / "runs" / "a", store)
    run.start()
    run.metrics(1, {"loss/main": 1.0})
    began = time.monotonic()
    run.finish("finished")
    assert time.monotonic() - began < 5.0
    assert run.problem
    assert run.link is None
    folder.unlink()
    (tmp_path / "away").rename(folder)
    assert sync(tmp_path / "runs") == {"a": 3}
    assert sync(tmp_path / "runs") == {}
    assert history(store, run.run_dir, "loss/main") == [(1, 1.0)]
    assert client(store).get_run(Shipper(run.run_dir).sent["run_id"]).info.status == "FINISHED"


def test_a_server_down_in_the_middle_loses_and_doubles_nothing(store, tmp_path, monkeypatch):
    run = tracker(tmp_path / "a", store)
    send, down = Shipper._send, threading.Event()

    def sometimes(self, events):
        if down.is_set():
            raise ConnectionError("nobody answers")
        send(self, events)

    monkeypatch.setattr(Shipper, "_send", sometimes)
    run.start()
    run.metrics(1, {"a": 1.0})
    until(lambda: not run.shipper.pending)
    down.set()
    run.metrics(2, {"a": 2.0})
    until(lambda: run.problem == "nobody answers")
    run.metrics(3, {"a": 3.0})
    down.clear()
    until(lambda: not run.shipper.pending)
    run.metrics(4, {"a": 4.0})
    run.finish("finished")
    assert run.problem is None
    assert history(store, run.run_dir, "a") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_a_later_run_sends_what_an_earlier_one_could_not(store, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "PATIENCE_S", 1.0)
    earlier, nowhere = tmp_path / "runs" / "earlier", tmp_path / "file"
    nowhere.touch()
    lost = tracker(earlier, f"sqlite:///{nowhere}/mlflow.db")
    lost.start()
    lost.metrics(1, {"a": 1.0})
    lost.finish("stopped")
    lines = (earlier / "journal.jsonl").read_text().replace(f"sqlite:///{nowhere}/mlflow.db", store)
    (earlier / "journal.jsonl").write_text(lines)
    later = tracker(tmp_path / "runs" / "later", store)
    later.start()
    until(lambda: not Shipper(earlier).pending)
    later.finish("finished")
    assert history(store, earlier, "a") == [(1, 1.0)]


def test_a_locked_database_is_waited_for(store, tmp_path):
    other = sqlite3.connect(store.removeprefix("sqlite:///"), check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    run = tracker(tmp_path / "a", store)
    run.start()
    run.metrics(1, {"a": 1.0})
    time.sleep(0.2)
    other.rollback()
    other.close()
    until(lambda: not run.shipper.pending, seconds=60)
    run.finish("finished")
    assert history(store, run.run_dir, "a") == [(1, 1.0)]


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(store, tmp_path):
    for steps, status in ((range(1, 6), "stopped"), (range(4, 9), "finished")):
        run = tracker(tmp_path / "a", store)
        run.start()
        for step in steps:
            run.metrics(step, {"a": float(step)})
        run.finish(status)
    [found] = client(store).search_runs(["1"])
    assert found.info.status == "FINISHED"
    assert history(store, run.run_dir, "a") == [(s, float(s)) for s in range(1, 9)]


def test_a_child_stands_below_its_parent_even_when_it_is_sent_first(store, tmp_path):
    parent = tracker(tmp_path / "p", store, name="ablation")
    parent._thread = threading.Thread(target=lambda: None)  # the parent's own thread gets to nothing
    parent.start()
    child = tracker(tmp_path / "c", store, parent=tmp_path / "p")
    child.start()
    child.finish("finished")
    tags = client(store).get_run(Shipper(tmp_path / "c").sent["run_id"]).data.tags
    assert tags["mlflow.parentRunId"] == Shipper(tmp_path / "p").sent["run_id"]
    parent.finish("finished")


def test_batches_keep_order_and_stay_below_the_servers_limit(tmp_path):
    journal = tmp_path / "journal.jsonl"
    metric = {"event": "metrics", "time": 0, "step": 1, "values": dict.fromkeys("abcdefg", 0.0)}
    start, artifact, finish = ({"event": kind, **dict.fromkeys(KEYS[kind])} for kind in ("start", "artifact", "finish"))
    events = [start, *[metric] * 300, artifact, metric, finish]
    journal.write_text("".join(json.dumps(event) + "\n" for event in events))
    sent = list(batches(journal, 0))
    assert [event for group, _ in sent for event in group] == events
    assert [len(group) for group, _ in sent] == [1, 142, 142, 16, 1, 1, 1]  # 142 * 7 = 994 <= 1000
    assert sent[-1][1] == journal.stat().st_size
    assert [event for group, _ in batches(journal, sent[1][1]) for event in group] == events[143:]


def test_a_run_that_nobody_knows_is_one_clear_line(store):
    with pytest.raises(HymoError, match=r"known to this folder or to MLflow, but got 'f{32}'"):
        tracking.folder_of("f" * 32, store)
