"""The cache folder: entries appear whole or not at all, built once even by several processes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from hymo.errors import DataError

_CHUNK = 1 << 20


def cache_dir() -> Path:
    """$HYMO_CACHE, or ~/.cache/hymo. Everything in it can be deleted at any time; it is made again."""
    return Path(os.environ.get("HYMO_CACHE") or Path.home() / ".cache" / "hymo")


@contextmanager
def said_plainly(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write in `folder` into one DataError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"the disk must have room, but {str(folder)!r} is full; free some, or point HYMO_CACHE at another disk") from None
        raise DataError(f"{str(folder)!r} must be writable, but got: {error.strerror or error}; HYMO_CACHE can name one") from None


def write_folder(target: Path, build: Callable[[Path], None]) -> None:
    """Run `build(temporary folder)` beside `target` and rename the result to it: on any failure nothing is left behind."""
    with said_plainly(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
        try:
            build(temporary)
            temporary.chmod(0o755)
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def build_once(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder `kind/key` of the cache, made by `build` unless it is there. Other processes wait for the one that builds."""
    target = cache_dir() / kind / key
    if target.is_dir():
        return target
    with said_plainly(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{target}.lock")
        lock.acquire()
    try:
        if not target.is_dir():
            for stale in target.parent.glob(f"{key}.tmp-*"):      # of a builder that was killed: we hold its lock
                shutil.rmtree(stale, ignore_errors=True)
            write_folder(target, build)
    finally:
        lock.release()
    return target


def digest(*parts: object) -> str:
    """16 hex digits of sha256 over the parts as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """sha256 of a file's content. Remembered in the cache by the file's address, size and time of change, so that large corpora are hashed once."""
    status = path.stat()
    key = digest(str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    remembered = cache_dir() / "digests" / key
    if status.st_size >= 64 * _CHUNK and remembered.is_file():      # small files are hashed faster than looked up
        return remembered.read_text()
    state = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    if status.st_size >= 64 * _CHUNK:
        with said_plainly(remembered.parent):
            remembered.parent.mkdir(parents=True, exist_ok=True)
            temporary = remembered.with_name(f"{key}.{os.getpid()}")
            temporary.write_text(state.hexdigest())
            temporary.replace(remembered)
    return state.hexdigest()
