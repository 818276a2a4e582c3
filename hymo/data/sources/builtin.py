"""The corpus that is always there: the running Python's own standard library."""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from hymo.data.sources.base import TextSource
from hymo.errors import DataError


class Builtin(TextSource):
    """The source text of the running Python's standard library, one document a file: about 12 MB of real text that needs no download.

    Left out: test folders, installed packages, and `_sysconfigdata*`, which holds the paths of the machine that built Python. Differs between
    versions of Python, so the version goes into the log beside the fingerprint. Licence: PSF.
    """

    name = "builtin"
    LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or Path(sysconfig.get_path("stdlib"))

    @cached_property
    def _texts(self) -> list[tuple[str, bytes]]:
        found = []
        for folder, subfolders, files in os.walk(self.root):
            subfolders[:] = [f for f in subfolders if f not in self.LEFT_OUT and not f.startswith("config-")]
            for file in files:
                if file.endswith(".py") and not file.startswith("_sysconfigdata"):
                    path = Path(folder, file)
                    found.append((path.relative_to(self.root).as_posix(), path.read_bytes()))
        if not found:
            raise DataError(f"data.source=builtin needs the .py files of Python's standard library, but {str(self.root)!r} has none; name a file")
        return sorted(found)

    def documents(self) -> Iterator[bytes]:
        return (text for _, text in self._texts if text)

    @cached_property
    def fingerprint(self) -> str:
        state = hashlib.sha256()
        for name, text in self._texts:
            state.update(f"{name}\0{len(text)}\0".encode() + text)
        return state.hexdigest()[:16]

    @property
    def summary(self) -> dict[str, str | int]:
        return {"python": platform.python_version()}
