"""What a study file may say."""

import pytest

from hymo.errors import AblationError
from hymo.recipe import load_recipe
from hymo.study import load_study
from tests.test_search import STUDY


def load(folder, text, trials=None):
    (folder / "knobs.yaml").write_text(text)
    return load_study(folder / "knobs.yaml", lambda scale: load_recipe("v1_0", scale=scale), folder / "searches", trials)


def test_a_number_of_trials_on_the_command_line_replaces_the_files(tmp_path):
    study = load(tmp_path, STUDY, trials=9)
    assert (study.name, study.config.trials) == ("knobs", 9)
    assert study.identity == load(tmp_path, STUDY).identity, "more trials are the same study"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("scale: tiny\n", "", "scale must be given"),
        ("trials: 4", "trials: 0", r"knobs.yaml:3:1: trials must be greater than 0"),
        ("sampler: random", "sampler: radom", "sampler"),
        ("low: 1e-4, high: 1e-2", "low: 1e-2, high: 1e-4", "low must be below high"),
        ("low: 1e-4", "low: 0", "a logarithmic range must begin above 0"),
        ("choices: [1, 2]", "choices: [1, 2], low: 1", "must have either low and high, or choices"),
        ("{choices: [1, 2]}", "{}", "must have either low and high, or choices"),
        ("ffn.top_k", "ffn.topk", "knobs.yaml:7:3: .*'topk'; did you mean 'top_k'"),
        ("sampler: random", "rungs: [1, 0.5]", "must rise to 1"),
        ("sampler: random", "rungs: [0.5, 1]\nobjectives: {val/loss: minimize, val/bpb: minimize}", "pruning needs one objective"),
        ("sampler: random", "objectives: {val/los: minimize}", "must be among .*; did you mean 'val/loss'"),
        ("low: 1e-4, high: 1e-2, log: true", "low: 1, high: 4, step: 0.5", "the step of whole numbers must be whole, but got step=0.5"),
        ("low: 1e-4, high: 1e-2, log: true", "low: 1.0, high: 2.0, step: 5", "a step must fit between low and high"),
        ("sampler: random", "sampler: cmaes", "cmaes takes one objective and ranges only"),
    ],
)
def test_a_mistake_in_a_study_is_one_line(tmp_path, old, new, message):
    assert old in STUDY
    with pytest.raises(AblationError, match=message) as caught:
        load(tmp_path, STUDY.replace(old, new))
    assert "\n" not in str(caught.value)
