"""The report's pictures, as SVG text: how large the differences are, what was learnt when, where in the context, and at what cost; then those that
`hymo plot` draws, of the first seed of each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hymo.figures.run import pictures
from hymo.figures.story import Story, read_story
from hymo.figures.style import BASELINE, COLOURS, drawn, legend, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hymo.ablate.store import Store


def figures(result: Mapping[str, Any], stories: Sequence[Story] = ()) -> list[tuple[str, str, str]]:
    """(title, caption, SVG) of every picture that the result and the stories have numbers for."""
    own = ((title, caption, drawn(draw, result)) for title, caption, draw in PICTURES)
    told = ((picture.title, f"First seed. {picture.caption}", figure) for picture, figure in pictures(stories))
    return [(title, caption, svg(figure)) for title, caption, figure in (*own, *told) if figure is not None]


def stories(result: Mapping[str, Any], store: Store) -> list[Story]:
    """What the first seed of each arm told, in the colours of the other pictures; runs that the store no longer has are left out."""
    found = [(row, store.run(row["keys"][0])) for row in result["rows"] if "keys" in row]
    return [read_story(folder, row["arm"], _colour(result, row)) for row, folder in found if (folder / "journal.jsonl").is_file()]


def _forest(figure: Figure, result: Mapping[str, Any]) -> bool:
    arms = [row for row in result["rows"] if row.get("mean") is not None]
    if not arms:
        return False
    figure.set_size_inches(7.2, 1.1 + 0.45 * len(arms))
    axes: Axes = figure.subplots()
    for at, row in enumerate(arms):
        axes.fill_betweenx([at - 0.4, at + 0.4], -row["margin"], row["margin"], color="#eeeeee", linewidth=0)
        colour = _colour(result, row)
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [at, at], color=colour, linewidth=2.5, solid_capstyle="butt")
        axes.plot([row["mean"]], [at], "D", color=colour, markersize=6)
        seeds = [value for value in row["differences"] if value is not None]
        axes.plot(seeds, [at - 0.24] * len(seeds), "o", color=colour, markersize=3.5, alpha=0.55)
    axes.axvline(0, color="#888888", linewidth=1)
    axes.set_yticks(range(len(arms)), [row["arm"] for row in arms])
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("difference from the baseline" + ("" if result["primary"] is None else f", {result['primary']}"))
    return True


def _curves(figure: Figure, result: Mapping[str, Any]) -> bool:
    axes: Axes = figure.subplots()
    drawn = False
    for row in result["rows"]:
        for number, curve in enumerate(row["curves"]):
            if curve:
                steps, losses = zip(*curve, strict=True)
                axes.plot(
                    steps,
                    losses,
                    color=_colour(result, row),
                    linewidth=1,
                    alpha=0.7,
                    label=row["arm"] if number == 0 else None,
                    marker=".",
                    markersize=3,
                )
                drawn = True
    axes.set_xlabel("step")
    axes.set_ylabel("held-out loss, nats per token")
    if drawn:
        legend(axes)
    return drawn


def _positions(figure: Figure, result: Mapping[str, Any]) -> bool:
    base = dict(map(tuple, result["rows"][0]["by_position"]))
    axes: Axes = figure.subplots()
    drawn = False
    for row in result["rows"][1:]:
        points = [(position, loss - base[position]) for position, loss in row["by_position"] if position in base]
        if points:
            axes.plot(*zip(*points, strict=True), color=_colour(result, row), marker="o", markersize=4, label=row["arm"])
            drawn = True
    axes.axhline(0, color="#888888", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens of context, at least")
    axes.set_ylabel("difference in loss")
    if drawn:
        legend(axes)
    return drawn


def _cost(figure: Figure, result: Mapping[str, Any]) -> bool:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    rows = [row for row in result["rows"] if None not in row["values"]]
    if len(rows) < 2 or result["primary"] is None:
        return False
    panels: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    for axes, name, label in zip(
        panels, ("flops_per_token_train", "state_bytes"), ("training FLOPs per token", "decode state, bytes per sequence"), strict=True
    ):
        for row in rows:
            mean = sum(row["values"]) / len(row["values"])
            axes.plot([row[name]], [mean], "o", color=_colour(result, row), markersize=7, label=row["arm"])
        axes.set_xlabel(label)
        axes.margins(x=0.15, y=0.15)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(EngFormatter())
    panels[0].set_ylabel(result["primary"])
    legend(panels[1])
    return True


def _colour(result: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    index = [one["arm"] for one in result["rows"]].index(row["arm"])
    return BASELINE if index == 0 else COLOURS[(index - 1) % len(COLOURS)]


PICTURES = (
    ("Differences", "Each dot is a seed, paired with the baseline's; the bar is the interval of the mean. Grey: the margin of equivalence.", _forest),
    ("Held-out loss", "One thin line a seed.", _curves),
    (
        "Difference by position",
        "From the baseline, by the length of context read, mean over seeds. Falling to the right: uses its context better.",
        _positions,
    ),
    ("Cost against loss", "Each dot is an arm at its mean over seeds. Down and to the left is better.", _cost),
)
