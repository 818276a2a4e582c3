"""From a path, folder or glob to a sorted list of files. Links are followed; a loop of links is refused at once."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from hymo.errors import DataError


def list_files(spec: str) -> list[Path]:
    """The files that `spec` names, sorted by path. Hidden ones (`.git`, `.DS_Store`) count only when they are named themselves."""
    if not spec.strip():
        raise DataError(f"data.source must name a source, but got {spec!r}; the default is builtin")
    path = Path(spec).expanduser()
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            found, nothing = sorted(_walk(path)), "the folder holds no file"
        elif glob.has_magic(spec):
            found, nothing = sorted(_glob(path)), "the glob matches no file"
        else:
            path.stat()     # says what is wrong with it: missing, a loop of links, no permission
            raise DataError(f"data.source must be a regular file, folder or glob, but got {spec!r}")
    except OSError as error:
        kinds = "builtin, hf:…, synthetic:… or a readable file, folder or glob"
        raise DataError(f"data.source must be {kinds}, but got {spec!r}: {error.strerror}") from None
    except ValueError as error:     # a NUL in the name
        raise DataError(f"data.source must be a path, but got {spec!r}: {error}") from None
    if not found:
        raise DataError(f"data.source must name at least one file, but got {spec!r}: {nothing}")
    return found


def _walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    real = folder.resolve(strict=True)
    if real in above:
        raise DataError(f"a folder must not hold a link to a folder above it, but {str(folder)!r} leads back to {str(real)!r}; remove the link")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(Path(entry.path), (*above, real))
            elif entry.is_file():
                yield Path(entry.path)
            elif entry.is_symlink():
                raise DataError(f"a link must lead to a file or folder, but {entry.path!r} does not; remove it")


def _glob(path: Path) -> Iterator[Path]:
    """Matches of a glob. `**` is any number of folders; brackets are plain letters beside it.

    Python's own `**` follows a loop of links for ever, so it is not used.
    """
    if "**" not in path.parts:
        yield from (Path(p) for p in glob.glob(str(path)) if Path(p).is_file())
        return
    depth = next(i for i, part in enumerate(path.parts) if glob.has_magic(part))
    root = Path(*path.parts[:depth])
    pattern = "/".join(path.parts[depth:])
    wild = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern)
    regex = re.compile("".join(wild.get(part) or re.escape(part) for part in parts))
    if root.is_dir():
        yield from (file for file in _walk(root) if regex.fullmatch(file.relative_to(root).as_posix()))
