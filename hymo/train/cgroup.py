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
    for line in membership.read_text().splitlines() if membership.is_file() else []:
        _, controllers, place = line.split(":", 2)
        kind = next((name for name in controllers.split(",") if name in FILES), None)
        if kind is not None:
            top = root / kind
            own = top / place.lstrip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(top):
                    yield folder, FILES[kind]


def _left(folder: Path, limit: str, usage: str, cached: str) -> int | None:
    try:
        most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
        stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
        return None if most == "max" else max(0, int(most) - used + int(stat.get(cached, 0)))
    except (OSError, ValueError):       # no such controller here, or not ours to read
        return None
