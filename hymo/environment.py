"""Where a run took place: versions, devices, host, and the state of the code, as text for the log."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path


def environment() -> dict[str, str]:
    """Versions, device and host by name. Asks torch, so it costs torch's import."""
    import torch

    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host.cpu": cpu_model(),
        "host.cores": str(cores()),
        "hymo": version("hymo"),
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        found["device"] = torch.cuda.get_device_name()
        found["device.count"] = str(torch.cuda.device_count())
    else:
        found["device"] = "cpu"
    return found


def cpu_model() -> str:
    """The processor's own name."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores this process may use, which in a container are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def git_state(folder: Path | None = None) -> dict[str, str]:
    """{"git.commit", "git.branch", "git.dirty"} of the working folder; empty outside a repository, or where git is not installed."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    dirty = git("status", "--porcelain", "--untracked-files=no")
    return {
        "git.commit": commit,
        "git.branch": git("rev-parse", "--abbrev-ref", "HEAD") or "",
        "git.dirty": "unknown" if dirty is None else str(bool(dirty)).lower(),
    }
