import io
import json
from dataclasses import replace

from rich.console import Console

from hymo.probes.base import Finding
from hymo.probes.report import plain, plot, table

GRID = Finding("needle", {"gain": 2.5}, "nats", (("depth", [0, 50]), ("length", [32, 64, 128])), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "what")
LINE = Finding("mqar", {"accuracy": 0.5}, "accuracy", (("", ["64x4", "64x8"]),), [1.0, 0.0], "what")


def drawn(found):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table(found))
    return [line.split() for line in console.export_text().splitlines()]


def test_tables():
    assert drawn(GRID) == [["depth", "\\", "length", "32", "64", "128"], ["0", "1.0000", "2.0000", "3.0000"], ["50", "4.0000", "5.0000", "6.0000"]]
    assert drawn(LINE) == [["accuracy", "64x4", "64x8"], ["1.0000", "0.0000"]]


def test_a_star_marks_what_is_longer_than_in_training():
    marked = replace(LINE, beyond=("64x8",))
    assert drawn(marked)[0] == ["accuracy", "64x4", "64x8*"]
    assert plain(marked)["beyond"] == ["64x8"]
    assert marked.metrics == LINE.metrics


def test_plain_is_json():
    assert json.loads(json.dumps(plain(GRID)))["axes"] == [{"name": "depth", "labels": [0, 50]}, {"name": "length", "labels": [32, 64, 128]}]


def test_plots_are_images(tmp_path):
    for found in (GRID, LINE):
        path = tmp_path / "probes" / f"{found.probe}.png"
        plot(found, path)
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000
