import pytest

from hymo.figures.story import read_story
from hymo.journal import Journal


@pytest.fixture
def run(tmp_path):
    """A run of 40 steps and two validations, with two layers of experts and two of heads, in a folder of its own."""
    folder = tmp_path / "runs" / "hy"
    journal = Journal(folder)
    journal.append("start", uid="0", tracking="none", experiment="e", name="hy", parent=None, params={}, tags={}, dataset=None)
    for step in range(1, 41):
        journal.metrics(step, {"loss/main": 5.0 - step / 20, "grad_norm": 10.0 / step})
        if step % 20 == 0:
            journal.metrics(step, {"val/loss": 4.0, "val/loss_at_1": 4.5, "val/loss_at_2": 4.0, "val/loss_at_16": 3.0 + 10 / step})
            load = [0.5, 0.25, 0.125, 0.125]
            journal.vectors(step, {"moe/load/M0": load, "decay_rate/G0": [0.5, 0.1 * step], "decay_rate/G1": [0.01, 0.02], "moe/load/M1": load[::-1]})
    journal.append("finish", status="finished", tags={})
    journal.close()
    return folder


@pytest.fixture
def story(run):
    return read_story(run)
