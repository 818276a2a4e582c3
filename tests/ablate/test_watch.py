import io

from rich.console import Console

from hymo.ablate.store import Outcome, RunSpec, Status, Store, write_json
from hymo.ablate.watch import Watch, ending


def spec(key):
    return RunSpec(key, f"arm {key}", {}, 0, 1, "above")


def test_every_run_that_ends_is_told_once(tmp_path):
    store, out = Store(tmp_path), io.StringIO()
    store.write_outcome("old", Outcome(Status.FINISHED, {"val/loss": 1.0}))
    with Watch(Console(file=out, width=120), store) as watch:
        look = watch({key: spec(key) for key in ("old", "new", "bad")}, "session")
        look()
        store.write_outcome("new", Outcome(Status.FINISHED, {"val/loss": 2.5}, seconds=61.0))
        look()
        store.write_failure("bad", "session", Status.FAILED, "why")
        look()
        look()
    assert out.getvalue().splitlines() == ["[2/3] arm new: val loss 2.5000 in 1 min 1 s", "[3/3] arm bad: failed: why"]


def test_what_is_left_is_told_by_the_pace_so_far(tmp_path, monkeypatch):
    now = iter([100.0, 190.0])
    monkeypatch.setattr("hymo.ablate.watch.time.monotonic", lambda: next(now))
    store, out = Store(tmp_path), io.StringIO()
    with Watch(Console(file=out, width=120), store) as watch:
        look = watch({key: spec(key) for key in ("a", "b", "c")}, "session")
        store.write_outcome("a", Outcome(Status.FINISHED, {"val/loss": 2.5}, seconds=61.0))
        look()
    assert out.getvalue() == "[1/3] arm a: val loss 2.5000 in 1 min 1 s; about 3 min left\n"       # two more at 90 s each


def test_what_is_left_counts_the_runs_under_way(tmp_path, monkeypatch):
    now = iter([100.0, 190.0])
    monkeypatch.setattr("hymo.ablate.watch.time.monotonic", lambda: next(now))
    store, out = Store(tmp_path), io.StringIO()
    write_json(store.run("b") / "progress.json", {"step": 5, "steps": 10, "loss": 2.0})
    with Watch(Console(file=out, width=120), store) as watch:
        look = watch({key: spec(key) for key in ("a", "b", "c")}, "session")
        store.write_outcome("a", Outcome(Status.FINISHED, {"val/loss": 2.5}, seconds=61.0))
        look()
    assert "; about 1 min 30 s left" in out.getvalue()       # 1.5 of 3 in 90 s


def test_a_terminal_shows_how_far_runs_are(tmp_path):
    store, out = Store(tmp_path), io.StringIO()
    write_json(store.run("a") / "progress.json", {"step": 3, "steps": 10, "loss": 2.0})
    with Watch(Console(file=out, width=120, force_terminal=True, highlight=False), store) as watch:
        look = watch({"a": spec("a"), "b": spec("b")}, "session")
        look()
        watch.bars.refresh()
        assert "step 3/10  loss 2.000" in out.getvalue()
        store.write_outcome("a", Outcome(Status.DIVERGED, error="at step 4"))
        look()
        assert watch.tasks == {}
    assert "[1/2] arm a: diverged: at step 4" in out.getvalue()


def test_endings():
    assert ending(Outcome(Status.OUT_OF_MEMORY)) == "out of memory"
