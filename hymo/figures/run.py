"""The pictures of training runs: loss, gradient norm, expert load over time, loss by position, half-lives of the states.

Each draws any number of runs into one figure and says whether there was anything to draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from hymo.figures.story import Series, Story
from hymo.figures.style import FAINT, SIZE, drawn, legend, step_axis, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOW = 1 / 50         # of the run: what the bold line of a noisy series is the median over
COLUMNS = 4             # of small panels


@dataclass(frozen=True)
class Picture:
    """One kind of picture."""

    name: str                                                   # its file's stem
    title: str
    caption: str
    draw: Callable[[Figure, Sequence[Story]], bool]
    note: Callable[[Sequence[Story]], str] = lambda stories: ""     # what the caption says besides, of what these runs have only


def pictures(stories: Sequence[Story]) -> list[tuple[Picture, Figure]]:
    """Every picture that the runs have numbers for, its caption whole."""
    figures = ((picture, drawn(picture.draw, stories)) for picture in PICTURES)
    return [(replace(picture, caption=picture.caption + picture.note(stories)), figure) for picture, figure in figures if figure is not None]


# -- series over steps ------------------------------------------------------------------------------------------------------------
def loss(figure: Figure, stories: Sequence[Story]) -> bool:
    """Training loss, and held-out loss on top of it."""
    axes: Axes = figure.subplots()
    late: list[float] = []
    for story in stories:
        trained, held_out = story.metrics.get("loss/main", []), story.metrics.get("val/loss", [])
        _noisy(axes, story, trained, alone=len(stories) == 1)
        axes.plot(*_columns(held_out), color=story.colour, linewidth=0, marker="o", markersize=5, markerfacecolor="white", markeredgewidth=1.5)
        late += [value for step, value in [*trained, *held_out] if step > 0.02 * max(step for step, _ in trained or held_out)]
    if not late:
        return False
    low, high = min(late), max(late)
    if low < high:
        axes.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))      # the first steps' fall would flatten the rest
    _label(axes, stories, "loss, nats per token")
    return True


def gradient_norm(figure: Figure, stories: Sequence[Story]) -> bool:
    """Norm of the gradient before it is clipped."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes: Axes = figure.subplots()
    for story in stories:
        _noisy(axes, story, [(step, value) for step, value in story.metrics.get("grad_norm", []) if value > 0], alone=len(stories) == 1)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    _label(axes, stories, "gradient norm")
    return bool(axes.lines)


def _noisy(axes: Axes, story: Story, series: Series, alone: bool) -> None:
    """Every value, faint, and the running median, bold. A value that is not finite leaves a gap."""
    if not series:
        return
    steps, values = _columns(series)
    half = _reach(series)
    axes.plot(steps, values, color=story.colour, linewidth=0.6, alpha=0.45 if alone else 0.25)
    middle = [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    axes.plot(steps, middle, color=story.colour, linewidth=1.8, label=story.name)


def _reach(series: Series) -> int:
    """Values on either side that the running median takes in: none in a short run."""
    return max(1, round(WINDOW * len(series))) // 2


def _of_training(stories: Sequence[Story]) -> str:
    return _over(stories, "loss/main") + (" Rings: held out." if any("val/loss" in story.metrics for story in stories) else "")


def _over(stories: Sequence[Story], metric: str) -> str:
    smoothed = any(_reach(story.metrics.get(metric, [])) for story in stories)
    return f"; bold: running median over 1/{round(1 / WINDOW)} of the run." if smoothed else "."


def _label(axes: Axes, stories: Sequence[Story], what: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(what)
    axes.margins(x=0.01)
    step_axis(axes)
    if len(stories) > 1 and axes.get_legend_handles_labels()[0]:
        legend(axes)


def _columns(series: Series) -> tuple[list[int], list[float]]:
    return [step for step, _ in series], [value for _, value in series]


# -- what validations measure -----------------------------------------------------------------------------------------------------
def expert_load(figure: Figure, stories: Sequence[Story]) -> bool:
    """A panel for each layer of experts: a row an expert, a column a validation."""
    from matplotlib.colors import TwoSlopeNorm

    panels = [(story, layer, series) for story in stories for layer, series in story.measured("moe/load").items()]
    if not panels:
        return False
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure.set_size_inches(max(SIZE[0], 2.1 * columns), 0.6 + 1.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (story, layer, series) in zip(grid, panels, strict=False):
        steps = [step for step, _ in series]
        load = [[share * len(shares) for _, shares in series for share in [shares[expert]]] for expert in range(len(series[0][1]))]
        edges = [0, *steps]         # a validation stands at the end of what it sums up
        mesh = axes.pcolormesh(edges, range(len(load) + 1), load, cmap="RdBu_r", norm=TwoSlopeNorm(1, 0, 2), rasterized=True)
        uneven = max(row[-1] for row in load) - 1
        above = "" if len(stories) == 1 else f"{story.name}\n"
        axes.set_title(f"{above}{layer}: MaxVio {uneven:.2f}", fontsize=8)
        axes.set_yticks([0.5, len(load) - 0.5], ["1", str(len(load))])
        axes.grid(visible=False)
        step_axis(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("step", fontsize=10)
    figure.supylabel("expert", fontsize=10)
    figure.colorbar(mesh, ax=list(grid), extend="max", label="load over an even share", aspect=30)
    return True


def loss_by_position(figure: Figure, stories: Sequence[Story]) -> bool:
    """Held-out loss by the context that was read, at the last validation; of a single run, at the earlier ones too."""
    axes: Axes = figure.subplots()
    for story in stories:
        found = story.by_position()
        if len(stories) == 1:
            for number, (step, points) in enumerate(list(found.items())[:-1], start=1):
                label = f"step {step:,}" if number == 1 else None
                axes.plot(*zip(*points, strict=True), color=story.colour, alpha=0.12 + 0.4 * number / len(found), linewidth=1, label=label)
        if found:
            last = max(found)
            label = story.name if len(stories) > 1 else f"step {last:,}"
            axes.plot(*zip(*found[last], strict=True), color=story.colour, marker="o", markersize=4, linewidth=1.8, label=label)
    if not axes.lines:
        return False
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("tokens of context, at least")
    axes.set_ylabel("held-out loss, nats per token")
    legend(axes)
    return True


def half_lives(figure: Figure, stories: Sequence[Story]) -> bool:
    """ln 2 over the mean decay rate of each head, layer by layer, at the last validation."""
    axes: Axes = figure.subplots()
    layers = list(dict.fromkeys(layer for story in stories for layer in story.measured("decay_rate")))
    if not layers:
        return False
    figure.set_size_inches(max(SIZE[0], 1.6 + 0.3 * len(layers) * max(1, len(stories))), SIZE[1])
    width = 0.7 / len(stories)
    for number, story in enumerate(stories):
        left = (number - (len(stories) - 1) / 2) * width
        for layer, series in story.measured("decay_rate").items():
            at, (_, first), (_, last) = layers.index(layer) + left, series[0], series[-1]
            if _earlier(stories, series):
                axes.plot([at - 0.22] * len(first), _half_life(first), "o", color=FAINT, markersize=2.5, alpha=0.5, markeredgewidth=0)
            axes.plot([at] * len(last), _half_life(last), "_", color=story.colour, markersize=min(12, 60 * width), alpha=0.8)
            axes.plot([at], [median(_half_life(last))], "o", color=story.colour, markersize=4.5)
        axes.plot([], [], "o", color=story.colour, markersize=4.5, label=story.name)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(layers)), layers, rotation=90 if len(layers) > 16 else 0)
    axes.grid(axis="x", visible=False)
    axes.axhline(1, color=FAINT, linewidth=1, linestyle=":")
    axes.set_ylabel("half-life, tokens")
    if len(stories) > 1:
        legend(axes)
    return True


def _earlier(stories: Sequence[Story], series: Sequence[object]) -> bool:
    """Whether the first validation is drawn beside the last: of one run, when it has two."""
    return len(stories) == 1 and len(series) > 1


def _at_first(stories: Sequence[Story]) -> str:
    drawn_too = any(_earlier(stories, series) for story in stories for series in story.measured("decay_rate").values())
    return "; grey, left: at the first validation." if drawn_too else "."


def _half_life(rates: list[float]) -> list[float]:
    return [math.log(2) / rate if rate > 0 else math.inf for rate in rates]


PICTURES: tuple[Picture, ...] = (
    Picture("loss", "Loss", "Line: training", loss, _of_training),
    Picture("gradient_norm", "Gradient norm", "Before clipping", gradient_norm, lambda stories: _over(stories, "grad_norm")),
    Picture("expert_load", "Expert load", "Share of the held-out assignments, 1 being even; MaxVio at the last validation.", expert_load),
    Picture("loss_by_position", "Loss by position", "By the length of context read: it falls as far as context is used.", loss_by_position),
    Picture("half_lives", "Half-lives of the states", "A dash is a head, the dot their median", half_lives, _at_first),
)


def write_pictures(stories: Sequence[Story], folder: Path) -> list[Path]:
    """Every picture of these runs as a PNG in `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    of = f" · {stories[0].name}" if len(stories) == 1 else ""
    files = []
    for picture, figure in pictures(stories):
        files.append(folder / f"{picture.name}.png")
        write_png(figure, files[-1], f"{picture.title}{of}", picture.caption)
    return files
