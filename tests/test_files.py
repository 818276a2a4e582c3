import errno
import os
from pathlib import Path

import pytest

from hymo.files import read_small, write_whole


def test_a_file_is_there_whole(tmp_path: Path) -> None:
    for text in ("one\n", "größer\n"):
        write_whole(tmp_path / "f", text)
        assert (tmp_path / "f").read_text(encoding="utf-8") == text
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "f", "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "f", "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("f", "old")]


def test_small_regular_files_are_read_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert read_small(tmp_path / "f", 5) == b"12345"
    with pytest.raises(OSError, match="larger than the 4 bytes"):
        read_small(tmp_path / "f", 4)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            read_small(path, 4)
