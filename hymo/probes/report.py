"""A finding as a table for people, a plot for MLflow, and plain values for machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hymo.probes.base import Finding

if TYPE_CHECKING:
    from rich.table import Table


def table(found: Finding) -> Table:
    """The cells: the last axis across, the first one, if there are two, down. A star marks what lies beyond the trained length."""
    from rich.table import Table

    *down, (across, labels) = found.axes
    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column(f"{down[0][0]} \\ {across}" if down else across or found.value, style="dim")
    for label in labels:
        shown.add_column(f"{label}*" if label in found.beyond else str(label), justify="right")
    width = len(labels)
    for i, label in enumerate(down[0][1] if down else [found.value if across else ""]):
        shown.add_row(str(label), *(f"{value:.4f}" for value in found.cells[i * width : (i + 1) * width]))
    return shown


def plain(found: Finding) -> dict[str, Any]:
    """JSON-like values."""
    return {
        "setting": found.setting,
        "value": found.value,
        "summary": found.summary,
        "axes": [{"name": name, "labels": list(labels)} for name, labels in found.axes],
        "cells": found.cells,
        "beyond": list(found.beyond),
    }


def plot(found: Finding, path: Path) -> None:
    """A line over one axis, a heat map over two."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    *down, (across, labels) = found.axes
    axes.set_xticks(range(len(labels)), [str(label) for label in labels])
    axes.set_xlabel(across)
    if down:
        name, rows = down[0]
        width = len(labels)
        image = axes.imshow([found.cells[i * width : (i + 1) * width] for i in range(len(rows))], aspect="auto", cmap="viridis")
        axes.set_yticks(range(len(rows)), [str(label) for label in rows])
        axes.set_ylabel(name)
        figure.colorbar(image, label=found.value)
    else:
        axes.plot(range(len(labels)), found.cells, marker="o")
        axes.set_ylabel(found.value)
        axes.grid(alpha=0.3)
        if found.value == "accuracy":
            axes.set_ylim(-0.02, 1.02)
    axes.set_title(f"{found.probe}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.summary.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
