import errno
import io
import json

import pytest
from rich.console import Console

from hymo import display
from hymo.display import Clock, JsonLines, Lines, Live, sparkline
from hymo.train import StepInfo


def info(step, steps=100, **metrics):
    values = {"loss/main": 5.0 - step / 50, **{name.replace("__", "/"): value for name, value in metrics.items()}}
    return StepInfo(step=step, steps=steps, loss=values["loss/main"], tokens=step * 64, seconds=0.1, metrics=values)


def test_a_sparkline_spans_least_to_greatest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0], 8) == "█▁"
    assert sparkline([], 8) == ""
    assert sparkline([3, 3, 3], 8) == "▁▁▁"


def test_a_sparkline_keeps_its_width_and_the_last_value():
    assert sparkline([0.0] * 99 + [1.0], 10) == "▁▁▁▁▁▁▁▁▁█"


def test_a_loss_that_is_not_finite_is_a_cross():
    assert sparkline([1.0, float("nan"), 2.0, float("inf")], 4) == "▁×█×"


def test_time_left_counts_from_the_second_step_on(monkeypatch):
    now = iter([100.0, 102.0, 104.0])  # the first step is done at 100, after any amount of warming up
    monkeypatch.setattr(display.time, "monotonic", lambda: next(now))
    clock = Clock()
    assert [clock.left(step, 11) for step in (1, 2, 3)] == [None, 18.0, 16.0]


def test_plain_lines_are_about_twenty_and_every_validation():
    stream = io.StringIO()
    with Lines(stream) as shown:
        for step in range(1, 101):
            shown.step(info(step))
            if step == 7:
                shown.validated(step, {"val/loss": 4.2, "val/bpb": 1.5})
    lines = stream.getvalue().splitlines()
    assert len(lines) == 22
    assert lines[2] == "step 7  val loss 4.2000 (1.500 bits per byte)"
    assert lines[-1] == "step 100/100  loss 3.0000"


def test_speed_and_utilisation_are_shown_when_known():
    assert display.line(info(100, speed__tokens_per_s=98_765.0, speed__mfu=0.51), None) == "step 100/100  loss 3.0000  98.8 ktokens/s  MFU 51.0%"
    assert display.line(info(100, speed__tokens_per_s=64.8), None) == "step 100/100  loss 3.0000  64.8 tokens/s"


def test_json_lines_are_json_even_when_the_loss_is_not():
    stream = io.StringIO()
    with JsonLines(stream) as shown:
        shown.say("hello")
        shown.step(info(1, grad_norm=float("nan")))
        shown.validated(1, {"val/loss": 4.0})
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"message": "hello"},
        {"step": 1, "steps": 100, "loss/main": 4.98, "grad_norm": None},
        {"step": 1, "val/loss": 4.0},
    ]


@pytest.mark.parametrize("width", [40, 120])
def test_the_panel_shows_progress_loss_and_validation_at_any_width(width):
    stream = io.StringIO()
    with Live(Console(file=stream, width=width, force_terminal=True, color_system=None)) as shown:
        shown.step(info(50, speed__tokens_per_s=1234.0))
        shown.validated(50, {"val/loss": 4.2})
        shown.step(info(51, speed__tokens_per_s=1234.0))
    last = stream.getvalue().replace("\x1b[?25h", "").splitlines()[-3:]
    assert "step 51/100" in last[0]
    assert set(last[1].strip()) <= set(display.BARS)
    if width == 120:
        assert "loss 3.9800  val loss 4.2000  1.23 ktokens/s" in last[2]


def test_a_pipe_gets_lines_a_machine_json_and_other_ranks_nothing(capsys, monkeypatch):
    assert isinstance(display.choose(False), Lines)
    assert isinstance(display.choose(True), JsonLines)
    monkeypatch.setenv("RANK", "1")
    with display.choose(False) as silent:
        silent.say("hello")
        silent.step(info(1))
        silent.validated(1, {"val/loss": 1.0})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("shown", [Lines, JsonLines])
def test_a_full_disk_behind_stdout_ends_no_run_and_a_reader_that_left_does(shown):
    class Stream(io.StringIO):
        error = OSError(errno.ENOSPC, "No space left on device")

        def flush(self):
            raise self.error

    stream = Stream()
    shown(stream).step(info(1))
    stream.error = BrokenPipeError()
    with pytest.raises(BrokenPipeError):
        shown(stream).step(info(2))
