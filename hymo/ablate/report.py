"""The report: one HTML file that needs nothing beside it, made from the result alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hymo.ablate.figures import figures, stories
from hymo.ablate.store import Store
from hymo.ablate.table import decides, difference, seed_values, sentences
from hymo.figures.story import Story
from hymo.units import in_bytes, si


def write_report(path: Path, result: Mapping[str, Any], store: Store | None = None) -> None:
    """Render `result` to `path`, whole or not at all; with the `store`, what the runs told while they trained, too."""
    partial = path.with_suffix(".part")
    partial.write_text(render(result, stories(result, store) if store else ()), encoding="utf-8")
    partial.replace(path)


def render(result: Mapping[str, Any], told: Sequence[Story] = ()) -> str:
    """The report as HTML text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hymo.ablate", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"si": si, "in_bytes": in_bytes, "difference": difference, "change": _change, "p": _p, "number": _number}
    rows = [{**row, "shown": seed_values(result, row)} for row in result["rows"]]
    page = environment.get_template("report.html")
    return page.render(result=result, rows=rows, decides=decides(result), figures=figures(result, told), sentences=sentences(result))


def _change(value: float) -> str:
    return "=" if abs(value) < 5e-5 else f"{value:+.2%}"


def _p(value: float | None) -> str:
    return "—" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"
