import errno
import json
import os
from pathlib import Path

import pytest

from hymo.errors import HymoError
from hymo.journal import Journal, read


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_a_metric_is_recorded_once_per_step(tmp_path):
    journal = Journal(tmp_path)
    for step in (1, 2, 3):
        journal.metrics(step, {"loss/main": 10.0 - step})
    journal.metrics(3, {"loss/main": 99.0, "val/loss": 7.5})
    journal.close()
    assert [(line["step"], line["values"]) for line in lines(tmp_path)] == [
        (1, {"loss/main": 9.0}), (2, {"loss/main": 8.0}), (3, {"loss/main": 7.0}), (3, {"val/loss": 7.5})]  # fmt: skip


def test_a_resumed_run_repeats_steps_and_doubles_nothing(tmp_path):
    first = Journal(tmp_path)
    for step in range(1, 8):
        first.metrics(step, {"loss/main": float(step)})
    first.close()
    again = Journal(tmp_path)
    for step in range(5, 11):  # from the checkpoint at 4
        again.metrics(step, {"loss/main": float(step)})
    again.close()
    assert [line["step"] for line in lines(tmp_path)] == list(range(1, 11))


def test_vectors_are_recorded_once_per_step(tmp_path):
    for values in ([0.25, 0.75], [9.0, 9.0]):  # a resumed run measures again
        journal = Journal(tmp_path)
        journal.vectors(4, {"moe/load/M0": values})
        journal.metrics(4, {"val/loss": values[0]})
        journal.close()
    assert [(line["event"], line["step"], line["values"]) for line in lines(tmp_path)] == [
        ("vectors", 4, {"moe/load/M0": [0.25, 0.75]}), ("metrics", 4, {"val/loss": 0.25})]  # fmt: skip


def test_a_torn_last_line_is_cut_and_written_again(tmp_path):
    journal = Journal(tmp_path)
    journal.metrics(1, {"loss/main": 1.0})
    journal.metrics(2, {"loss/main": 2.0})
    journal.close()
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert [event["step"] for event, _ in read(path)] == [1]
    again = Journal(tmp_path)
    again.metrics(2, {"loss/main": 2.0})
    again.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_reading_goes_on_from_an_offset(tmp_path):
    journal = Journal(tmp_path)
    journal.metrics(1, {"a": 1.0})
    [(_, offset)] = read(journal.path)
    journal.metrics(2, {"a": 2.0})
    assert [event["step"] for event, _ in read(journal.path, offset)] == [2]
    journal.close()


def test_nan_and_infinity_survive(tmp_path):
    journal = Journal(tmp_path)
    journal.metrics(1, {"nan": float("nan"), "inf": float("inf")})
    journal.close()
    [(event, _)] = read(journal.path)
    assert event["values"]["nan"] != event["values"]["nan"]
    assert event["values"]["inf"] == float("inf")


def test_a_full_disk_delays_lines_and_loses_none(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.metrics(1, {"a": 1.0})
    really_write = os.write

    def half_a_line(file: int, data: bytes) -> int:
        really_write(file, data[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_a_line)
    with pytest.warns(RuntimeWarning, match=r"journal\.jsonl cannot be written .*No space left"):
        journal.metrics(2, {"a": 2.0})
    journal.metrics(3, {"a": 3.0})  # says it once
    assert [line["step"] for line in lines(tmp_path)] == [1]
    monkeypatch.undo()
    journal.metrics(4, {"a": 4.0})
    journal.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "line",
    [b"{", b"3", b"{}", b"[" * 100_000, b"\xff\xfe", b"\0\0", b'{"event": "metrics"}', b'{"event": "lunch", "time": 1}', b'{"event": []}'],
)
def test_a_damaged_line_is_one_error_that_says_where(tmp_path, line):
    journal = Journal(tmp_path)
    journal.metrics(1, {"a": 1.0})
    journal.close()
    end = journal.path.stat().st_size
    journal.path.write_bytes(journal.path.read_bytes() + line + b"\n")
    with pytest.raises(HymoError, match=rf"an event a line, but '.*journal\.jsonl' does not at byte {end}: .*truncate -s {end} FILE"):
        list(read(journal.path))
