import io
import re

import pytest
from rich.console import Console

from hymo.ablate.compare import compare, comparison_table
from hymo.errors import HymoError
from hymo.recipe import dump, load_recipe
from hymo.tracking import MlflowTracker


def make(folder, loss, *overrides, **metrics):
    run = MlflowTracker(None, folder, tracking="none")
    run.start()
    run.metrics(3, {"val/loss": loss, **metrics})
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


def lines(found):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(comparison_table(found))
    return [re.split(r"\s{2,}", line.strip()) for line in console.export_text().splitlines()]


def test_the_table_says_which_layers_and_what_they_inherit(tmp_path):
    both, own = "model.rope={type: rope_ntk, factor: 2}", 'model.overrides={"G[1]": {mixer: {rope: none}}}'
    found = compare([make(tmp_path / "a", 3.0, both), make(tmp_path / "b", 3.0, both, own)])
    assert found["recipe"] == {"G.mixer.rope [layers 2]": ["rope_ntk (model.rope)", "none"]}
    assert ["G.mixer.rope [layers 2]", "rope_ntk (model.rope)", "none"] in lines(found)


def test_the_table_counts_to_the_unit_and_bytes_by_theirs(tmp_path):
    few = {"cost/params_active": 82520.0, "memory/bytes_peak": 621_550_000.0, "speed/tokens_per_s": 64.8}
    many = {"cost/params_active": 279_321.0, "memory/bytes_peak": 1536.0, "speed/tokens_per_s": 123_456.7}
    shown = lines(compare([make(tmp_path / "a", 3.0, **few), make(tmp_path / "b", 2.123456, **many)]))
    assert shown[1:] == [
        ["recipes", "equal", "equal"],
        ["status", "finished", "finished"],
        ["step", "3", "3"],
        ["val/loss", "3", "2.1235"],
        ["speed/tokens_per_s", "64.8", "123,457"],
        ["memory/bytes_peak", "592.8 MiB", "1.5 KiB"],
        ["cost/params_active", "82,520", "279,321"],
    ]
