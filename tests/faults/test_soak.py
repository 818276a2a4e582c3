"""The soak's own verdict, and a few runs of it; `make soak` takes an hour."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.soak import Row, growth, is_flat, soak

FLAT = [Row(minutes=m, runs=10 * m, memory_mb=500.0 + m % 3, handles=8, threads=2, children=0, objects=10**5) for m in range(1, 61)]


def test_flat_is_flat() -> None:
    assert is_flat(growth(FLAT))


@pytest.mark.parametrize(("figure", "each_hour"), [("memory_mb", 60.0), ("handles", 6), ("threads", 6), ("children", 6)])
def test_what_grows_is_seen(figure: str, each_hour: float) -> None:
    leaking = [replace(row, **{figure: getattr(row, figure) + each_hour * row.minutes / 60}) for row in FLAT]
    assert growth(leaking)[figure] == pytest.approx(each_hour * 22.5 / 60, rel=0.1)      # the middles lie 22.5 minutes apart
    assert not is_flat(growth(leaking))


def test_runs_after_each_other_leave_no_handle_and_no_thread(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYMO_CACHE", str(tmp_path / "cache"))
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    rows = list(soak(tmp_path, lambda minutes, runs: runs == 3))        # the third is stopped and resumed
    assert [row.runs for row in rows] == [1, 2, 3]
    assert (rows[2].handles, rows[2].threads, rows[2].children) == (rows[1].handles, rows[1].threads, rows[1].children)
