"""Probing a run: measure, and put it on the run's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hymo.errors import DataError, ProbeError
from hymo.probes.base import Finding, Probe, Subject, names, open_probe
from hymo.probes.report import plot

if TYPE_CHECKING:
    from hymo.train.tracker import Tracker


@dataclass(frozen=True)
class Probed:
    """What was found, and why the other probes were left out."""

    findings: list[Finding] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def measure(probes: Sequence[Probe], subject: Subject) -> list[Finding]:
    """Every probe on the subject. All are checked before the first one runs."""
    for each in probes:
        each.check(subject.recipe)
    return [each.measure(subject) for each in probes]


def measure_fitting(subject: Subject, options: Mapping[str, dict[str, Any]]) -> Probed:
    """Every probe that the run can be asked, and for the others the reason. `options` holds settings by the probe's name."""
    found = Probed()
    for name in names():
        try:
            found.findings.append(open_probe(name, options.get(name)).measure(subject))
        except (ProbeError, DataError) as error:
            found.left_out[name] = str(error)
    return found


def record(findings: Sequence[Finding], step: int, tracker: Tracker, folder: Path) -> None:
    """Hand metrics and plots to a tracker that is open; plots lie in `folder`/probes."""
    for found in findings:
        tracker.metrics(step, found.metrics)
        path = folder / "probes" / f"{found.probe}.png"
        plot(found, path)
        tracker.artifact(path, "probes")
