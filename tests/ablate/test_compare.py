import pytest

from hymo.ablate.compare import compare
from hymo.errors import HymoError
from hymo.recipe import dump, load_recipe
from hymo.tracking import MlflowTracker


def make(folder, loss, *overrides):
    run = MlflowTracker(None, folder, tracking="none")
    run.start()
    run.metrics(3, {"val/loss": loss})
    run.finish("finished")
    (folder / "recipe.yaml").write_text(dump(load_recipe("v1_0", overrides, scale="tiny")))
    return folder


def test_runs_beside_each_other(tmp_path):
    folders = [
        make(tmp_path / "a", 3.0),
        make(tmp_path / "b", 2.5, "model.softcap=30"),
        make(tmp_path / "c", 2.0, "run.seed=1", "model.layers.M.mixer.n_kv_groups=4"),
    ]
    found = compare(folders)
    assert found["runs"] == ["a", "b", "c"]
    assert found["recipe"] == {
        "model.softcap": ["15", "30", "15"],
        "M.mixer.n_kv_groups [layers 0, 4]": ["2", "2", "4"],
        "run.seed": ["0", "0", "1"],
    }
    assert found["result"] == {"status": ["finished"] * 3, "step": [3] * 3, "val/loss": [3.0, 2.5, 2.0]}


def test_one_run_is_no_comparison(tmp_path):
    with pytest.raises(HymoError, match="two runs at least, but got 1"):
        compare([make(tmp_path / "a", 3.0)])
