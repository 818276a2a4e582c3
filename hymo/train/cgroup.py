"""Memory that Linux control groups leave this process: containers and batch systems limit a job below what the machine has free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
FILES = {       # of versions 2 and 1: limit, usage, and in memory.stat the cached files that the kernel gives back first
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def bytes_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """The least of limit − (usage − cached files) over the process's group and those that it lies in; None where nothing sets a limit."""
    left = [room for folder, names in _groups(root, membership) if (room := _left(folder, *names)) is not None]
    return min(left, default=None)


def _groups(root: Path, membership: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Folder of each group, from the process's own up to the root, which in a container is all there is to see."""
    for line in _lines(membership):
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        kind = next((name for name in controllers.split(",") if name in FILES), None)
        if kind is not None and place.startswith("/"):
            top = root / kind
            own = top / place.lstrip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(top):
                    yield folder, FILES[kind]


def _left(folder: Path, limit: str, usage: str, cached: str) -> int | None:
    most, used = (_lines(folder / name)[0] for name in (limit, usage))
    if not most.isdecimal() or not used.isdecimal():        # no such controller here, no limit ("max"), or not ours to read
        return None
    given_back = [line.removeprefix(f"{cached} ") for line in _lines(folder / "memory.stat") if line.startswith(f"{cached} ")]
    return max(0, int(most) - int(used) + sum(int(number) for number in given_back if number.isdecimal()))


def _lines(file: Path) -> list[str]:
    """One empty line where there is no such file to read. A group's name may hold any byte but a new line."""
    try:
        return file.read_text(errors="surrogateescape").strip("\n").split("\n")
    except (OSError, ValueError):
        return [""]
