import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hymo.data import open_data
from hymo.data.cache import build_once, cache_dir, digest, file_digest, write_folder
from hymo.errors import DataError


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("HYMO_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "hymo"


def test_built_once(cache: Path):
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "x").write_text("whole")

    for _ in range(2):
        assert (build_once("things", "key", build) / "x").read_text() == "whole"
    assert len(built) == 1
    assert sorted(p.name for p in (cache / "things").iterdir()) == ["key", "key.lock"]


BUILD = """
import sys, time
from hymo.data.cache import build_once
def build(folder):
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")
    time.sleep(0.5)
    (folder / "x").write_text("whole")
assert (build_once("things", "key", build) / "x").read_text() == "whole"
"""


def test_two_processes_build_once(tmp_path: Path):
    processes = [subprocess.Popen([sys.executable, "-c", BUILD, str(tmp_path / "log")], env={**os.environ}) for _ in range(2)]
    assert [p.wait(timeout=120) for p in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "built\n"


def test_what_a_killed_builder_left_is_cleared(cache: Path):
    stale = cache / "things" / "key.tmp-abc"
    stale.mkdir(parents=True)
    (stale / "half").write_text("hal")
    build_once("things", "key", lambda folder: None)
    assert not stale.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_and_leaves_nothing(cache: Path, number: int):
    def build(folder: Path) -> None:
        (folder / "half").write_text("hal")
        raise OSError(number, os.strerror(number))

    with pytest.raises(DataError, match=r"the disk must have room, but .* is full; free some, or point HYMO_CACHE at another disk"):
        build_once("things", "key", build)
    assert [p.name for p in (cache / "things").iterdir()] == ["key.lock"]


def test_any_failure_leaves_nothing(tmp_path: Path):
    def build(folder: Path) -> None:
        (folder / "half").write_text("hal")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "out", build)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said(recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HYMO_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"must be writable, but got: .*; HYMO_CACHE can name one"):
        open_data(recipe(source=str(corpus)))


def test_digests_follow_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert digest("a", 1) == digest("a", 1) != digest("a", 2)
    monkeypatch.setattr("hymo.data.cache._CHUNK", 4)        # remembered from 256 bytes on
    file = tmp_path / "large"
    file.write_bytes(b"a" * 1000)
    first = file_digest(file)
    assert first == file_digest(file) == "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3"      # sha256sum
    file.write_bytes(b"a" * 999 + b"b")
    assert file_digest(file) != first
