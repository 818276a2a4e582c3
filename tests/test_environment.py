import os
import subprocess
import sys

import torch

from hymo.environment import cores, cpu_model, environment, git_state


def test_versions_and_device_are_named():
    found = environment()
    assert found["torch"] == torch.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["device"] == (torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
    assert found["host.cpu"] == cpu_model() != ""
    assert all(isinstance(value, str) for value in found.values())


def test_cores_are_those_this_process_may_use():
    assert cores() == len(os.sched_getaffinity(0))


def test_git_tells_commit_branch_and_dirt(tmp_path):
    assert git_state(tmp_path) == {}

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "trunk")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    clean = {"git.commit": git("rev-parse", "HEAD"), "git.branch": "trunk", "git.dirty": "false"}
    assert git_state(tmp_path) == clean
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path) == {**clean, "git.dirty": "true"}


def test_without_git_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state() == {}
