import json

from tests.ablate.test_compare import make


def test_runs_are_compared_by_folder_name_or_key(hymo, tmp_path):
    make(tmp_path / "runs" / "a", 3.0)
    make(tmp_path / "ablations" / "runs" / "0123abcd", 2.5, "model.softcap=30")
    done = hymo("compare", "a", "0123", "--json")
    assert json.loads(done.out)["recipe"] == {"model.softcap": ["15", "30"]}
    assert "model.softcap" in hymo("compare", "a", "0123abcd").out


def test_unknown_runs_and_one_run(hymo, tmp_path):
    make(tmp_path / "runs" / "a", 3.0)
    assert "two runs at least" in hymo("compare", "a").err
    done = hymo("compare", "a", "b")
    assert done.code == 2
    assert "but got 'b'" in done.err
