"""What a run told while it ran, read from its journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hymo.figures.style import COLOURS
from hymo.journal import read

Series = list[tuple[int, float]]                # (step, value), by step


@dataclass(frozen=True)
class Story:
    """One run, under the name and the colour that it has in a picture."""

    name: str
    metrics: dict[str, Series]
    vectors: dict[str, list[tuple[int, list[float]]]]
    colour: str = COLOURS[0]

    def measured(self, what: str) -> dict[str, list[tuple[int, list[float]]]]:
        """{layer: vectors} of `moe/load` and the like, in the order of the stack."""
        return {name.removeprefix(f"{what}/"): series for name, series in self.vectors.items() if name.startswith(f"{what}/")}

    def by_position(self) -> dict[int, list[tuple[int, float]]]:
        """{step: (tokens of context at least, loss)} of every validation."""
        found: dict[int, list[tuple[int, float]]] = {}
        for name, series in self.metrics.items():
            if name.startswith("val/loss_at_"):
                for step, loss in series:
                    found.setdefault(step, []).append((int(name.removeprefix("val/loss_at_")), loss))
        return {step: sorted(points) for step, points in sorted(found.items())}


def read_story(folder: Path, name: str | None = None, colour: str = COLOURS[0]) -> Story:
    """The story of the run in `folder`; an empty one when it has told nothing."""
    metrics: dict[str, dict[int, float]] = {}
    vectors: dict[str, dict[int, list[float]]] = {}
    kept: dict[str, dict[str, dict[int, Any]]] = {"metrics": metrics, "vectors": vectors}
    journal = folder / "journal.jsonl"
    for event, _ in read(journal) if journal.is_file() else ():
        for key, value in event["values"].items() if event["event"] in kept else ():
            kept[event["event"]].setdefault(key, {})[event["step"]] = value
    return Story(
        name or folder.name,
        {key: sorted(series.items()) for key, series in metrics.items()},
        {key: sorted(series.items()) for key, series in vectors.items()},
        colour,
    )
