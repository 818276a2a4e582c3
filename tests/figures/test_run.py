"""What the pictures show is read back from the drawn lines, not from pixels."""

import math
from dataclasses import replace

import pytest

from hymo.figures.run import expert_load, gradient_norm, half_lives, loss, loss_by_position, pictures, write_pictures
from hymo.figures.story import Story
from hymo.figures.style import COLOURS, drawn

NAMES = ["loss", "gradient_norm", "expert_load", "loss_by_position", "half_lives"]


def axes_of(draw, *stories):
    return drawn(draw, stories).axes


def points(line):
    return list(zip(*(list(map(float, data)) for data in line.get_data()), strict=True))


def test_loss_shows_training_and_held_out(story):
    [axes] = axes_of(loss, story)
    every, middle, held_out = axes.lines
    assert points(every) == story.metrics["loss/main"]
    assert points(middle) == story.metrics["loss/main"]        # a median over one step, in a run this short
    assert points(held_out) == [(20, 4.0), (40, 4.0)]
    assert axes.get_ylim()[1] >= 4.95


def test_the_bold_line_is_the_running_median():
    values = [float(i % 7) for i in range(250)]
    [axes] = axes_of(loss, Story("noisy", {"loss/main": list(enumerate(values, start=1))}, {}))
    middle = [y for _, y in points(axes.lines[1])]
    assert middle[100] == sorted(values[98:103])[2]             # 1/50 of 250 steps: five
    assert middle[0] == sorted(values[0:3])[1]


def test_the_gradient_norm_is_logarithmic(story):
    [axes] = axes_of(gradient_norm, story)
    assert axes.get_yscale() == "log"
    assert points(axes.lines[0])[:2] == [(1, 10.0), (2, 5.0)]


def test_expert_load_is_the_share_over_an_even_one(story):
    first, second, bar = axes_of(expert_load, story)
    assert first.get_title() == "M0: MaxVio 1.00"               # half of the tokens on one of four experts
    assert first.collections[0].get_array().tolist() == [[2.0, 2.0], [1.0, 1.0], [0.5, 0.5], [0.5, 0.5]]
    assert second.collections[0].get_array()[:, -1].tolist() == [0.5, 0.5, 1.0, 2.0]
    assert bar.get_ylabel() == "load over an even share"


def test_loss_by_position_shows_every_validation_of_one_run(story):
    [axes] = axes_of(loss_by_position, story)
    assert [points(line)[-1] for line in axes.lines] == [(16, 3.5), (16, 3.25)]
    [axes] = axes_of(loss_by_position, story, replace(story, name="other", colour=COLOURS[1]))
    assert [line.get_label() for line in axes.lines] == ["hy", "other"]


def test_half_lives_are_ln_2_over_the_rate(story):
    [axes] = axes_of(half_lives, story)
    heads = [line for line in axes.lines if line.get_marker() == "_"]
    assert [y for _, y in points(heads[0])] == pytest.approx([math.log(2) / 0.5, math.log(2) / 4])
    assert [y for _, y in points(heads[1])] == pytest.approx([math.log(2) / 0.01, math.log(2) / 0.02])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["G0", "G1"]


def captions(*stories):
    return {picture.name: picture.caption for picture, _ in pictures(stories)}


def test_captions_speak_of_what_is_drawn_only(story):
    short, other = captions(story), captions(story, replace(story, name="other"))
    assert short["loss"] == "Line: training. Rings: held out."
    assert short["gradient_norm"] == "Before clipping."
    assert short["half_lives"] == "A dash is a head, the dot their median; grey, left: at the first validation."
    assert other["half_lives"] == "A dash is a head, the dot their median."
    once = replace(story, vectors={name: series[-1:] for name, series in story.vectors.items()})
    assert captions(once)["half_lives"] == other["half_lives"]
    values = [(step, 2.0) for step in range(1, 101)]
    long = captions(Story("long", {"loss/main": values, "grad_norm": values}, {}))
    assert long["loss"] == "Line: training; bold: running median over 1/50 of the run."
    assert long["gradient_norm"] == "Before clipping; bold: running median over 1/50 of the run."


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 1000])
def test_no_tick_stands_between_two_steps(steps):
    series = [(step, 5.0 - step / steps) for step in range(1, steps + 1)]
    load = [(step, [0.5, 0.5]) for step, _ in series]
    short = Story("short", {"loss/main": series, "grad_norm": series}, {"moe/load/M0": load})
    for draw in (loss, gradient_norm, expert_load):
        ticks = axes_of(draw, short)[0].get_xticks()
        assert len(ticks)
        assert all(tick == round(tick) for tick in ticks)


def test_what_there_are_no_numbers_for_is_not_drawn(story):
    bare = Story("bare", {"loss/main": [(1, 5.0), (2, float("nan")), (3, 4.0)], "grad_norm": [(1, 1.0)]}, {})
    assert [picture.name for picture, _ in pictures([bare])] == NAMES[:2]
    assert pictures([Story("silent", {}, {})]) == []
    assert [picture.name for picture, _ in pictures([bare, story])] == NAMES


def test_pictures_are_files_that_repeat_byte_for_byte(story, tmp_path):
    first = write_pictures([story], tmp_path / "a" / "b")
    assert [path.stem for path in first] == NAMES
    again = write_pictures([story], tmp_path / "c")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in first)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == sorted(p.name for p in first)
