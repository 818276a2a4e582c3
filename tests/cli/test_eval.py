import json

import pytest

from hymo.cli.eval import read_settings
from hymo.errors import ProbeError
from hymo.recipe import load_recipe
from hymo.runs import list_runs
from tests.made import make_run

MQAR = ["mqar", "--scale", "tiny", "train.steps=2", "train.tokens_per_step=128", "eval.tokens=128", "train.threads=1"]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs" / "v1_0-tiny-abc")


def test_every_probe_that_fits_and_why_the_others_do_not(hymo, run):
    found = hymo("eval", "v1_0-tiny-abc", "--json", "needle.rows=2", "mqar.examples=4", "induction.segments=2")
    assert found.code == 0, found.err
    [line] = found.out.splitlines()
    machine = json.loads(line)
    assert list(machine["probes"]) == ["bits", "induction", "length", "mqar", "needle", "position"]
    assert list(machine["left_out"]) == ["task"]
    assert machine["step"] == 6
    assert machine["probes"]["length"]["axes"] == [{"name": "length", "labels": [64, 128, 256]}]
    assert len(machine["probes"]["needle"]["cells"]) == 15


def test_a_table_for_people(hymo, run):
    lines = hymo("eval", run.name, "--probe", "mqar", "mqar.examples=4", "mqar.cells=[[64, 4], [64, 16]]").out.splitlines()
    assert lines[0] == "v1_0-tiny-abc at step 6 of 6"
    assert lines[2].startswith("mqar: accuracy 0.")
    assert lines[4].split() == ["accuracy", "64x4", "64x16"]
    assert "*" not in "".join(lines)
    lines = hymo("eval", run.name, "--probe", "mqar", "mqar.examples=4", "mqar.cells=[[64, 4], [128, 4]]").out.splitlines()
    assert lines[4].split() == ["accuracy", "64x4", "128x4*"]
    assert lines[6] == "  * rows longer than the 64 tokens of training"


def test_probes_of_the_recipe_are_made_at_the_end_and_recorded(hymo, tmp_path, store):
    found = hymo("run", *MQAR, "eval.probes=[task]", f"run.tracking={store}")
    assert found.code == 0, found.err
    assert "task: accuracy 0." in found.out
    [run] = list_runs(tmp_path / "runs")
    assert run.status == "finished"
    assert 0 <= run.metrics["probe/task/accuracy"] <= 1
    assert (run.folder / "probes" / "task.png").read_bytes().startswith(b"\x89PNG")
    hymo("eval", run.name, "--probe", "mqar")
    from hymo.tracking import client

    seen = client(store).get_run(run.run_id)
    assert seen.info.status == "FINISHED"
    assert {"probe/mqar/64x4", "probe/mqar/accuracy", "probe/task/accuracy", "val/loss"} <= set(seen.data.metrics)
    assert [file.path for file in client(store).list_artifacts(run.run_id, "probes")] == ["probes/mqar.png", "probes/task.png"]


def test_a_probe_that_cannot_be_made_is_refused_before_training(hymo, tmp_path):
    found = hymo("run", *MQAR, "eval.probes=[needle]", "run.tracking=none")
    assert (found.code, found.out) == (2, "")
    assert found.err == "hymo: probe 'needle' needs a run on text, but got data.source=synthetic:mqar; take 'task' or 'mqar'\n"
    assert not list((tmp_path / "runs").iterdir())


def test_settings_change_nothing_on_record(hymo, tmp_path):
    hymo("run", *MQAR, "eval.probes=[]", "run.tracking=none")
    [run] = list_runs(tmp_path / "runs")
    hymo("eval", run.name, "--probe", "mqar", "mqar.examples=4")
    assert "probe/mqar/accuracy" not in list_runs(tmp_path / "runs")[0].metrics
    hymo("eval", run.name, "--probe", "mqar")
    assert "probe/mqar/accuracy" in list_runs(tmp_path / "runs")[0].metrics
    assert load_recipe(run.folder / "recipe.yaml").eval.probes == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--probe", "mqr"], "must be one of hymo's, but got 'mqr'; did you mean 'mqar'?"),
        (["--probe", "mqar", "mqar.vocab=8192"], "must fit the model's vocabulary of 257, but needs 8192 tokens; lower its vocab"),
        (["--probe", "length", "length.factors=[9]"], "at most 4 times the trained length, 256 tokens, but got rows of 576; shorten them"),
        (["--probe", "mqar", "needle.rows=3"], "settings must be those of a probe that is made, but got 'needle'; add --probe needle"),
        (["mqar=3"], "must be written PROBE.KEY=VALUE, but got 'mqar=3'"),
    ],
)
def test_errors_are_one_line(hymo, run, words, message):
    found = hymo("eval", run.name, *words)
    assert found.code == 2
    assert message in found.err
    assert found.err.count("\n") == 1


def test_settings_are_yaml():
    assert read_settings(["mqar.examples=64", "needle.depths=[0, 50]", "mqar.vocab=1e3"]) == {
        "mqar": {"examples": 64, "vocab": 1000.0}, "needle": {"depths": [0, 50]},
    }  # fmt: skip
    with pytest.raises(ProbeError, match="must be written"):
        read_settings(["examples=64"])
