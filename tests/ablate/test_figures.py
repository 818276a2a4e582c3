"""The report's pictures: those of the result, and those that the runs themselves told."""

from hymo.ablate.figures import figures, stories
from hymo.ablate.store import Store
from hymo.figures.style import BASELINE, COLOURS
from hymo.journal import Journal


def row(arm, key, loss):
    return {
        "arm": arm, "primary": "val/loss", "values": [loss], "differences": [loss - 3.0],
        "curves": [[(1, 5.0), (2, loss)]], "by_position": [(1, 5.0), (2, loss)],
        "flops_per_token_train": 1e9, "state_bytes": 1024, "keys": [key, f"{key}1"],
    }  # fmt: skip


RESULT = {"primary": "val/loss", "rows": [row("baseline", "aa", 3.0), row("new", "bb", 2.9), row("gone", "cc", 2.8)]}


def store_of(root):
    store = Store(root)
    for key in ("aa", "bb"):
        journal = Journal(store.run(key))
        for step in (1, 2):
            journal.metrics(step, {"loss/main": 5.0 - step, "grad_norm": 1.0})
            journal.vectors(step, {"decay_rate/G0": [0.5, 0.1]})
        journal.close()
    return store


def test_the_first_seed_of_each_arm_tells_its_story(tmp_path):
    found = stories(RESULT, store_of(tmp_path))
    assert [(story.name, story.colour) for story in found] == [("baseline", BASELINE), ("new", COLOURS[0])]
    assert found[0].metrics["loss/main"] == [(1, 4.0), (2, 3.0)]


def test_the_same_pictures_as_of_runs_stand_in_the_report(tmp_path):
    own = [title for title, _, _ in figures(RESULT)]
    assert own == ["Held-out loss", "Difference by position", "Cost against loss"]
    drawn = figures(RESULT, stories(RESULT, store_of(tmp_path)))
    assert [title for title, _, _ in drawn] == [*own, "Loss", "Gradient norm", "Half-lives of the states"]
    assert all(svg.startswith("<svg") and ">new</text>" in svg for _, _, svg in drawn)
