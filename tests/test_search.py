"""Studies: what a file may say, trials that fail or are killed, processes that share, and the recipe that comes out."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from hymo import search as searching
from hymo.errors import AblationError
from hymo.recipe import load_recipe
from hymo.search import best_trial, open_study, search, trial_recipe
from hymo.study import load_study

ROOT = Path(__file__).parents[1]
STUDY = """
scale: tiny
trials: 4
sampler: random
space:
  optimizer.adamw.lr: {low: 1e-4, high: 1e-2, log: true}
  model.layers.M.ffn.top_k: {choices: [1, 2]}
"""
QUICK = ["run.tracking=none", "train.threads=1"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def base(scale):
    return load_recipe("v1_0", QUICK, scale=scale)


@pytest.fixture
def study(tmp_path):
    """study(text, **options) -> a Study over v1_0."""

    def load(text=STUDY, trials=None):
        (tmp_path / "knobs.yaml").write_text(text)
        return load_study(tmp_path / "knobs.yaml", base, tmp_path / "searches", trials)

    return load


@pytest.fixture
def trained(monkeypatch):
    """Training replaced by a formula, its calls recorded: loss = (lr − 0.003)² · 1e4 + 1/top_k."""
    calls = []

    def train_trial(study, number, params, share, should_stop):
        recipe = trial_recipe(study, params)
        lr, top_k = recipe.optimizer.adamw.lr, recipe.model.layers["M"].ffn.top_k
        calls.append((number, lr, top_k, share))
        return {"val/loss": (lr - 0.003) ** 2 * 1e4 + 1 / top_k, "speed/tokens_per_s": 100.0 * top_k}

    monkeypatch.setattr(searching, "train_trial", train_trial)
    return calls


def test_a_study_has_its_trials_and_the_best_one_is_a_recipe(study, trained):
    said = []
    done = search(study(), said.append)
    assert len(done.trials) == len(trained) == len(said) == 4
    found = best_trial(done, None)
    assert found.value == min(trial.value for trial in done.trials)
    recipe = trial_recipe(study(), found.params)
    assert recipe.optimizer.adamw.lr == found.params["optimizer.adamw.lr"]
    assert search(study(), said.append).trials == done.trials  # enough: nothing is added
    assert len(search(study(trials=6), said.append).trials) == 6


def test_the_same_study_draws_the_same_values(study, trained):
    search(study(), lambda words: None)
    first = trained.copy()
    trained.clear()
    search(study(STUDY + "storage: journal\n").__class__(**{**vars(study(STUDY + "storage: journal\n")), "name": "again"}), lambda words: None)
    assert [call[1:] for call in trained] == [call[1:] for call in first]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes"])
def test_every_sampler_works_on_either_storage(study, trained, sampler):
    text = STUDY.replace("random", sampler).replace("choices: [1, 2]", "low: 1, high: 2").replace("trials: 4", "trials: 12")
    done = search(study(text + ("storage: journal\n" if sampler == "cmaes" else "")), lambda words: None)
    assert len(done.get_trials(states=[optuna.trial.TrialState.COMPLETE])) == 12


def test_a_trial_that_diverges_or_makes_no_recipe_counts_and_stops_nothing(study, monkeypatch, trained):
    real = searching.train_trial

    def fails(study, number, params, share, should_stop):
        if number == 1:
            raise searching._Diverged("the loss of step 3 is not finite")
        return real(study, number, params, share, should_stop)

    monkeypatch.setattr(searching, "train_trial", fails)
    said = []
    done = search(study(STUDY.replace("[1, 2]", "[1, 2, 9]").replace("trials: 4", "trials: 12")), said.append)
    assert len(done.trials) == 12
    failed = {trial.number: trial.user_attrs["why"] for trial in done.trials if trial.state == optuna.trial.TrialState.FAIL}
    assert failed[1] == "the loss of step 3 is not finite"
    assert any("top_k" in why for why in failed.values())
    assert done.best_trial.number not in failed


def test_a_killed_trial_is_repeated_and_counts_once(study, trained):
    opened = open_study(study())
    held = searching.ask(opened, study())
    params = held.trial.params
    held.claim.release()  # what the operating system does when the process dies
    done = search(study(), lambda words: None)
    states = [trial.state.name for trial in done.trials]
    assert states == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE", "COMPLETE"]
    assert done.trials[1].params == params
    assert done.trials[1].user_attrs["repeats"] == 0


def test_a_trial_that_another_process_holds_is_left_alone(study, trained):
    opened = open_study(study())
    held = searching.ask(opened, study())
    done = search(study(), lambda words: None)
    assert [trial.state.name for trial in done.trials] == ["RUNNING", "COMPLETE", "COMPLETE", "COMPLETE"]
    searching.work(opened, study(), held, lambda: False)
    assert searching.counted(opened) == 4


def test_pruning_happens_after_a_complete_short_schedule(study, trained, monkeypatch):
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: trial.number == 2)
    done = search(study(STUDY + "rungs: [0.5, 1]\n"), lambda words: None)
    assert [call[3] for call in trained if call[0] == 2] == [0.5]
    assert [call[3] for call in trained if call[0] == 3] == [0.5, 1]
    assert done.trials[2].state == optuna.trial.TrialState.PRUNED


def test_several_objectives_have_a_front(study, trained):
    text = STUDY.replace("trials: 4", "trials: 8") + "objectives: {val/loss: minimize, speed/tokens_per_s: minimize}\n"
    done = search(study(text), lambda words: None)
    assert {trial.number for trial in done.best_trials} <= {*range(8)}
    with pytest.raises(AblationError, match="--trial"):
        best_trial(done, None)
    assert best_trial(done, 5).number == 5


def test_a_study_may_not_change_what_it_searches(study, trained):
    search(study(), lambda words: None)
    with pytest.raises(AblationError, match="must go on with the space and recipe it began with"):
        open_study(study(STUDY.replace("1e-2", "2e-2")))


def test_no_finished_trial_is_no_best(study):
    with pytest.raises(AblationError, match="must have a finished trial"):
        best_trial(open_study(study()), None)


@pytest.mark.parametrize("address", ["nonsense", "postgresql://nobody/here"])
def test_a_database_that_cannot_be_opened_is_one_line_and_leaves_nothing(study, address):
    wanted = study(STUDY.replace("sampler: random", f"storage: '{address}'"))
    with pytest.raises(AblationError, match=f"a database that SQLAlchemy can open, but got '{address}'") as caught:
        open_study(wanted)
    assert "\n" not in str(caught.value)
    assert not wanted.folder.exists()


def command(*words):
    return [sys.executable, "-m", "hymo", "search", *words, "--study", "knobs.yaml"]


def test_two_processes_share_a_study_one_is_killed_and_best_writes_a_recipe(tmp_path, study):
    study(STUDY.replace("trials: 4", "trials: 5"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["v1_0", *QUICK, "train.steps=2", "eval.tokens=64", "--json"]
    both = [subprocess.Popen(command(*words), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    while not [*tmp_path.glob("searches/knobs/trials/*/1/journal.jsonl")] and both[0].poll() is None:
        time.sleep(0.05)
    os.kill(both[0].pid, signal.SIGKILL)
    for process in both:
        _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    again = subprocess.run(command(*words), env=environment, capture_output=True, text=True, timeout=240, check=True)
    trials = json.loads(again.stdout)["trials"]
    assert sum(trial["state"] == "complete" for trial in trials) == 5
    assert sum(trial["state"] == "fail" for trial in trials) <= 2  # killed, and repeated

    written = subprocess.run(command("best"), env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert "hymo run searches/knobs/best.yaml" in written.stdout
    best = min((trial for trial in trials if trial["state"] == "complete"), key=lambda trial: trial["values"][0])
    assert load_recipe(tmp_path / "searches" / "knobs" / "best.yaml").optimizer.adamw.lr == best["params"]["optimizer.adamw.lr"]
