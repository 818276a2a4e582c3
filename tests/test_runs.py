import json
import re

import pytest

from hymo.errors import HymoError
from hymo.journal import Journal
from hymo.runs import LABEL_WIDTH, find, label, list_runs, unknown

START = {"uid": "0", "tracking": "none", "experiment": "", "name": "a", "parent": None, "params": {}, "tags": {}, "dataset": {}}


def make(output, name, run_id=None, ended=None):
    journal = Journal(output / name)
    journal.append("start", **START)
    journal.metrics(7, {"loss/main": 3.5, "val/loss": 4.0})
    journal.metrics(8, {"loss/main": 3.0})
    if ended:
        journal.append("finish", status=ended, tags={})
    journal.close()
    if run_id:
        (output / name / "sent.json").write_text(json.dumps({"run_id": run_id, "offset": 0}))
    return output / name


def make_imported(output, name):
    (output / name / "checkpoints" / "step-0000000006").mkdir(parents=True)
    (output / name / "recipe.yaml").touch()
    return output / name


def test_a_run_is_what_its_journal_says(tmp_path):
    make(tmp_path, "first", "ab12", ended="finished")
    make(tmp_path, "second")
    first, second = list_runs(tmp_path)
    assert (first.name, first.status, first.step, first.run_id) == ("first", "finished", 8, "ab12")
    assert first.metrics == {"loss/main": 3.0, "val/loss": 4.0}
    assert (second.status, second.run_id) == ("running", None)


def test_a_resumed_run_is_running_again(tmp_path):
    folder = make(tmp_path, "first", ended="stopped")
    again = Journal(folder)
    again.append("start", **START)
    again.close()
    assert list_runs(tmp_path)[0].status == "running"


def test_no_runs(tmp_path):
    assert list_runs(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "a-1"),
        (["model.pattern=MG*4", "seed=1"], "a-1 pattern=MG*4 seed=1"),
        (['model.overrides={"before:M": {mixer: {rope: none}}}'], 'a-1 overrides={"before:M": {mixer: {rope: none}}}'),
        (["data.source=" + "x" * 99], "a-1 source=" + "x" * 68 + "…"),
    ],
)
def test_a_label_says_what_a_run_changes(overrides, expected):
    assert label("a-1", overrides) == expected
    assert len(expected) <= LABEL_WIDTH


@pytest.mark.parametrize("words", ["v1_0-tiny-aaaa0000", "v1_0-tiny-aaaa0000 pattern=MG*4", "v1_0-tiny-a", "0123abcd", "01", "0123abcdffff"])
def test_a_run_has_many_names(tmp_path, words):
    folder = make(tmp_path, "v1_0-tiny-aaaa0000", "0123abcdffff")
    make(tmp_path, "v1_0-tiny-bbbb0000", "4567abcdffff")
    assert find(words, tmp_path) == folder
    assert find(str(folder), tmp_path / "elsewhere") == folder


def test_an_ambiguous_prefix_is_refused(tmp_path):
    make(tmp_path, "v1_0-aa")
    make(tmp_path, "v1_0-bb")
    with pytest.raises(HymoError, match="unambiguous prefix, but got 'v1_0', which fits v1_0-aa, v1_0-bb"):
        find("v1_0", tmp_path)


@pytest.mark.parametrize("words", ["", "v2", "9999"])
def test_an_unknown_run_is_none(tmp_path, words):
    make(tmp_path, "v1_0-aa", "0123")
    assert find(words, tmp_path) is None


def test_an_unknown_run_is_told_what_is_near(tmp_path):
    make(tmp_path, "v1_0-aa", "0123")
    assert re.search(r"but got 'v1_0-ab'; did you mean 'v1_0-aa'\?", str(unknown("v1_0-ab", tmp_path)))


@pytest.mark.parametrize("note", ["", "{", "[]", "{}"])
def test_a_damaged_note_hides_no_run(tmp_path, note):
    folder = make(tmp_path, "first", "ab12")
    (folder / "sent.json").write_text(note)
    assert [(run.name, run.run_id) for run in list_runs(tmp_path)] == [("first", None)]


def test_an_imported_run_is_listed_named_and_found_like_any_other(tmp_path):
    trained, imported = make(tmp_path, "v1_0-aa", ended="finished"), make_imported(tmp_path, "out-imported-bb")
    assert {run.name: (run.status, run.step) for run in list_runs(tmp_path)} == {trained.name: ("finished", 8), imported.name: ("imported", 6)}
    assert find("out", tmp_path) == imported
    make_imported(tmp_path, "out-imported-cc")
    with pytest.raises(HymoError, match="which fits out-imported-bb, out-imported-cc"):
        find("out", tmp_path)
    assert "choose from out-imported-bb, out-imported-cc, v1_0-aa" in str(unknown("z", tmp_path))


def test_a_folder_with_a_recipe_alone_is_no_imported_run(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "recipe.yaml").touch()
    assert list_runs(tmp_path) == []
