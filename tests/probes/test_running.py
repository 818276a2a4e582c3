import pytest

from hymo.errors import ProbeError
from hymo.model import build_hymo
from hymo.probes.base import Subject, open_probe
from hymo.probes.running import measure, measure_fitting, record


class Recorder:
    def __init__(self):
        self.values, self.files = {}, []

    def metrics(self, step, values):
        assert step == 7
        self.values.update(values)

    def artifact(self, path, folder=""):
        self.files.append((path.name, folder))


def test_all_are_checked_before_the_first_is_made(task_recipe):
    class Broken:
        recipe = task_recipe

    with pytest.raises(ProbeError, match="needs a run on text"):
        measure([open_probe("mqar"), open_probe("bits")], Broken())


def test_what_fits_and_what_does_not(task_recipe):
    found = measure_fitting(Subject(build_hymo(task_recipe), task_recipe), {"mqar": {"examples": 2}})
    assert [one.probe for one in found.findings] == ["mqar", "position", "task"]
    assert "2 rows each" in found.findings[0].setting
    assert list(found.left_out) == ["bits", "induction", "length", "needle"]


def test_metrics_and_plots_go_to_the_tracker(task_recipe, tmp_path):
    findings = measure([open_probe("mqar", {"examples": 2})], Subject(build_hymo(task_recipe), task_recipe))
    tracker = Recorder()
    record(findings, 7, tracker, tmp_path)
    assert tracker.values == findings[0].metrics
    assert tracker.files == [("mqar.png", "probes")]
