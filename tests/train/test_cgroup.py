import pytest
import torch

from hymo.train import cgroup, device
from hymo.train.cgroup import bytes_left


def group(folder, names, limit, usage, cached):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, usage, f"anon 7\n{names[2]} {cached}"), strict=True):
        (folder / (name if "." in name else "memory.stat")).write_text(f"{value}\n")


V2, V1 = ("memory.max", "memory.current", "inactive_file"), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.mark.parametrize(("names", "top", "line"), [(V2, "", "0::/job/step"), (V1, "memory", "4:hugetlb,memory:/job/step")])
def test_the_tightest_group_counts(tmp_path, names, top, line):
    root, membership = tmp_path / "root", tmp_path / "membership"
    membership.write_text(f"9:cpu:/elsewhere\n{line}\n")
    group(root / top / "job" / "step", names, 1000, 300, 100)
    assert bytes_left(root, membership) == 800
    group(root / top / "job", names, 900, 800, 50)
    assert bytes_left(root, membership) == 150
    group(root / top, names, 100, 300, 0)
    assert bytes_left(root, membership) == 0


def test_only_the_root_is_to_be_seen_in_a_container(tmp_path):
    (tmp_path / "membership").write_text("0::/outside/the/container\n")
    group(tmp_path, V2, 500, 100, 0)
    assert bytes_left(tmp_path, tmp_path / "membership") == 400


def test_no_limit(tmp_path):
    membership = tmp_path / "membership"
    assert bytes_left(tmp_path, membership) is None
    membership.write_text("0::/\n")
    assert bytes_left(tmp_path, membership) is None
    group(tmp_path, V2, "max", 100, 0)
    assert bytes_left(tmp_path, membership) is None


def test_a_limit_bounds_what_a_run_may_take(monkeypatch):
    free = device.free_bytes(torch.device("cpu"))
    monkeypatch.setattr(cgroup, "bytes_left", lambda: 12345)
    assert free > 12345
    assert device.free_bytes(torch.device("cpu")) == 12345


@pytest.mark.parametrize("content", [b"garbage", b"0:/", b"\n\n", b"", b"0::job", b"\xff:\xff:\xff"])
def test_membership_that_says_nothing(tmp_path, content):
    group(tmp_path, V2, 500, 100, 0)
    (tmp_path / "membership").write_bytes(content)
    assert bytes_left(tmp_path, tmp_path / "membership") is None


def test_a_name_may_hold_any_byte(tmp_path):
    (tmp_path / "membership").write_bytes(b"0::/job\xff\x0b\n")
    group(tmp_path / "job\udcff\x0b", V2, 500, 100, 0)
    assert bytes_left(tmp_path, tmp_path / "membership") == 400


@pytest.mark.parametrize(("limit", "usage"), [("", "1"), ("1", ""), ("many", "1"), ("-5", "1"), ("1.5", "1")])
def test_numbers_that_are_none(tmp_path, limit, usage):
    (tmp_path / "membership").write_text("0::/\n")
    group(tmp_path, V2, limit, usage, 0)
    assert bytes_left(tmp_path, tmp_path / "membership") is None


@pytest.mark.parametrize("stat", [None, "", "\n", "inactive_file", "inactive_file many", "active_file 9"])
def test_a_limit_holds_without_statistics(tmp_path, stat):
    (tmp_path / "membership").write_text("0::/\n")
    group(tmp_path, V2, 1000, 300, 0)
    (tmp_path / "memory.stat").unlink()
    if stat is not None:
        (tmp_path / "memory.stat").write_text(stat)
    assert bytes_left(tmp_path, tmp_path / "membership") == 700
