"""Files that appear whole or not at all, whenever the process is killed or the disk is full, and that are read only if they are small."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` beside `path`, bring it to the disk, and rename it. Two processes that write one path must hold a lock."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_small(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most `most_bytes`. Raises OSError for any other: a device has no end, and a giant would fill the memory."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        content = file.read(most_bytes + 1) if path.stat().st_size <= most_bytes else None
    if content is None or len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than the {most_bytes:,} bytes that it may have", str(path))
    return content
