import json
import re
import signal
from contextlib import nullcontext

import pytest

from hymo.cli.run import interruptible
from hymo.recipe import load_recipe
from hymo.runs import list_runs

UNTRACKED = "run.tracking=none"


class Soon:
    """Asked before and in each step whether to stop: yes from the third time on."""

    def __init__(self):
        self.asked = 0

    def is_set(self):
        self.asked += 1
        return self.asked > 2


def test_a_run_ends_with_its_loss_and_its_mlflow_page(hymo, tmp_path, store, small):
    tracked = [*small, f"run.tracking={store}"]
    found = hymo("run", *tracked)
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert lines[0].startswith("step 1/4  loss ")
    assert re.fullmatch(r"v1_0-tiny-[0-9a-f]{8}: finished after 4 steps", lines[-3]), "what resume, generate and compare take"
    assert "on held-out text" in lines[-2]
    assert "of ln(257) = 5.5491" in lines[-2]
    [run] = list_runs(tmp_path / "runs")
    assert lines[-1].startswith(f"MLflow run: http://127.0.0.1:5000/#/experiments/1/runs/{run.run_id}")
    assert run.name.startswith("v1_0-tiny-")
    assert load_recipe(run.folder / "recipe.yaml") == load_recipe("v1_0", tracked[2:], "tiny")


def test_a_run_can_be_gone_on_with_by_a_prefix_of_its_name(hymo, tmp_path, monkeypatch, small):
    hymo("run", *small, UNTRACKED)
    [whole] = list_runs(tmp_path / "runs")
    with monkeypatch.context() as patched:
        patched.setattr("hymo.cli.run.interruptible", lambda _: nullcontext(Soon()))
        stopped = hymo("run", *small, UNTRACKED)
    assert stopped.code == 130
    [half] = [run for run in list_runs(tmp_path / "runs") if run.name != whole.name]
    assert half.status == "stopped"
    assert 0 < half.step < 4
    assert f"go on with: hymo resume {half.name}" in stopped.out
    resumed = hymo("resume", half.name[:-2], "--json")
    assert json.loads(resumed.out.splitlines()[-1])["status"] == "finished"
    [again] = [run for run in list_runs(tmp_path / "runs") if run.name == half.name]
    assert (again.status, again.step) == ("finished", 4)
    assert again.metrics["val/loss"] == whole.metrics["val/loss"]


def test_json_is_one_object_a_line(hymo, small):
    lines = [json.loads(line) for line in hymo("run", *small, UNTRACKED, "--json").out.splitlines()]
    assert [line["step"] for line in lines if "loss/main" in line] == [1, 2, 3, 4]
    assert lines[-1]["status"] == "finished"
    assert lines[-1]["mlflow"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--scale", "tiny", "data.source=nowhere.txt"], "nowhere.txt"),
        (["run", "--scale", "tiny", "train.max_steps=3"], "max_steps"),
        (["run", "--scale", "tinny"], "did you mean 'tiny'"),
        (["run", "--scale", "tiny", "--within", "5m"], "--within chooses a scale, so --scale must be left out"),
        (["run", "--within", "soon"], "a time must be a positive number with s, m, h or d, such as 30m, but got 'soon'"),
        (["run", "--scale", "tiny", "train.micro_batch=0"], "train.micro_batch must be auto or at least 1, but got 0"),
        (["run", "--scale", "tiny", "train.device=tpu"], "train.device must be auto, cpu, cuda or cuda:N, but got 'tpu'"),
        (["run", "--scale", "tiny", "data.options={a: 1}"], "data.options are a synthetic task's and must be empty for data.source=builtin"),
        (["run", "--nproc", "0"], "'--nproc'"),
        (["run", "--scale", "tiny", "--nproc", "3"], "must spread evenly over the devices, but got 4 rows for 3 devices"),
        (["run", "--nothing"], "hymo: No such option: --nothing"),
        (["resume", "nothing"], "a run must be one that `hymo runs` lists, a run folder or an MLflow run id, but got 'nothing'"),
    ],
)
def test_what_cannot_run_is_one_line_and_leaves_nothing(hymo, tmp_path, words, message):
    found = hymo(*words)
    assert found.code == 2
    assert message in found.err
    assert found.err.count("\n") == 1
    assert list_runs(tmp_path / "runs") == []
    assert not list(tmp_path.glob("runs/*"))


def test_a_machine_too_small_is_refused_before_anything_is_allocated(hymo, monkeypatch):
    monkeypatch.setattr("hymo.sizing.free_bytes", lambda device: 2**30)
    found = hymo("run", "--scale", "full")
    assert found.code == 2
    assert "training must fit into 1.0 GiB free" in found.err
    assert "--scale" in found.err


def test_the_first_interrupt_asks_and_the_second_ends(request):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)      # a job in the background may have been started deaf to it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    said = []
    with interruptible(said.append) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        assert len(said) == 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
