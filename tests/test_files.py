import errno
import os
from pathlib import Path

import pytest

from hymo.files import write_whole


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
