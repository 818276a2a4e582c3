"""What all pictures share: colours, lines, and how a drawing becomes a file or text."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by every kind of eye; what others are held against is dark grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
BASELINE = "#444444"
FAINT = "#888888"
SIZE = (7.2, 3.6)   # inches
DOTS_PER_INCH = 160
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hymo",  # the same numbers give the same file
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def drawn(draw: Callable[..., bool], *what: Any) -> Figure | None:
    """The figure that `draw(figure, *what)` fills; None when it says that there is nothing to draw."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        return figure if draw(figure, *what) else None


def svg(figure: Figure) -> str:
    """The figure as an <svg> element."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def write_png(figure: Figure, path: Path, title: str, caption: str) -> None:
    """Write the figure under its title and caption, whole or not at all."""
    import matplotlib as mpl

    partial = path.with_name(f".{path.name}.partial")
    with mpl.rc_context(STYLE):
        figure.suptitle(f"{title}\n", x=0.012, ha="left", fontsize=10, linespacing=1.6, weight="bold")     # the empty line keeps room
        figure.text(0.012, 1 - 0.29 / figure.get_figheight(), caption, va="top", fontsize=9, color="#555555")
        figure.savefig(partial, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    partial.replace(path)


def step_axis(axes: Axes) -> None:
    """Steps are counted along x: no tick stands between two of them."""
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)


def legend(axes: Axes) -> None:
    """Names beside the picture, not over it."""
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
