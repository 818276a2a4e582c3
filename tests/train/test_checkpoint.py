import errno
import json
import logging
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hymo.errors import CheckpointError
from hymo.train import checkpoint
from hymo.train.parallel import World

WORLD = World(torch.device("cpu"))


def groups(fill: float = 0.0) -> dict[str, dict[str, Tensor]]:
    return {
        "model": {"w": torch.full((3, 2), fill), "load": torch.full((4,), int(fill), dtype=torch.int64)},
        "optimizer": {"w/step": torch.tensor(fill), "w/momentum": torch.full((3, 2), -fill)},
    }


def save(root: Path, step: int, **kwargs: int) -> Path:
    return checkpoint.save(root, step, groups(step), {"note": [step, None, 0.1]}, WORLD, **kwargs)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    values = {"model": {"w": torch.tensor([1e-45, -0.0, float("inf"), float("nan"), 1 / 3])}, "optimizer": {}}
    checkpoint.save(tmp_path, 7, values, {"x": 0.1 + 0.2}, WORLD)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    into = {"w": torch.zeros(5)}
    found.load("model", into, WORLD)
    assert torch.equal(into["w"].view(torch.int32), values["model"]["w"].view(torch.int32))
    assert (found.step, found.state["x"]) == (7, 0.1 + 0.2)


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    torch.manual_seed(3)
    path = save(tmp_path, 1)
    wanted = torch.rand(4)
    torch.manual_seed(9)
    checkpoint.open_checkpoint(path).restore_rng(WORLD)
    assert torch.equal(torch.rand(4), wanted)


def test_the_newest_and_every_multiple_are_kept(tmp_path: Path) -> None:
    for step in range(1, 8):
        save(tmp_path, step, keep_last=2, keep_every=3)
    assert [p.name for p in checkpoint.paths(tmp_path)] == [f"step-{s:010d}" for s in (3, 6, 7)]


FILES = ["model/model.safetensors", "optimizer/optimizer.safetensors", "state.json", "manifest.json", "rng/rank-00000.safetensors"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("how", ["flip", "cut", "delete"])
def test_a_damaged_newest_falls_back_and_says_so(tmp_path: Path, file: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2) / file
    if how == "flip":
        damage(path)
    elif how == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()
    with caplog.at_level(logging.WARNING, "hymo"):
        found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert "step-0000000001, is used instead: " in caplog.text
    assert str(path.relative_to(tmp_path)).split("/")[0] in caplog.text


def test_all_damaged_is_an_error_and_none_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert checkpoint.latest(tmp_path) is None
    (save(tmp_path, 1) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"all 1 in .* are damaged \(.*manifest\.json"):
        checkpoint.latest(tmp_path)
    assert not caplog.text, "there is none that could be used instead"


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(tmp_path: Path) -> None:
    damage(save(tmp_path, 1) / "model/model.safetensors")
    save(tmp_path, 1)
    assert checkpoint.open_checkpoint(tmp_path / "step-0000000001").step == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step-0000000001"]


@pytest.mark.parametrize("call", range(1, 9))
def test_a_disk_that_fills_at_any_sync_leaves_the_checkpoint_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    save(tmp_path, 1)
    calls, fsync = 0, os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"must fit on the disk, but .* free .*No space left on device.*free some space and resume"):
        save(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["step-0000000001"]
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 1


def test_a_write_that_safetensors_cannot_finish_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="must fit on the disk"):
        save(tmp_path / "checkpoints", 1)


def test_half_written_ones_are_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".step-0000000005.partial" / "model").mkdir(parents=True)
    save(tmp_path, 1)
    checkpoint.discard_partial(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["step-0000000001"]


def test_one_that_stepped_aside_comes_back_when_its_successor_never_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM saves the step that was just saved: killed between the two renames, neither must be lost."""
    class Killed(BaseException):
        pass

    save(tmp_path, 1)
    rename = Path.rename

    def killed_after_the_first(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise Killed
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", killed_after_the_first)
    with pytest.raises(Killed):
        save(tmp_path, 1)
    monkeypatch.undo()
    assert checkpoint.latest(tmp_path) is None
    checkpoint.discard_partial(tmp_path)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step-0000000001"]


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", "null", '{"format": 1, "files": []}', '{"format": 1, "files": {"a": 3}}', "\xff"])
@pytest.mark.parametrize("file", ["state.json", "manifest.json"])
def test_whatever_stands_in_its_json_is_one_error(tmp_path: Path, file: str, text: str) -> None:
    path = save(tmp_path, 1)
    (path / file).write_text(text, encoding="latin-1")
    if file == "state.json":
        (path / "manifest.json").unlink()
        checkpoint.seal(path)
    with pytest.raises(CheckpointError):
        checkpoint.open_checkpoint(path)


@pytest.mark.parametrize("info", ["[" * 100_000, "{}", "3", '{"w": {}}', '{"w": {"saved_offsets": ["x", 0]}}'])
def test_shard_headers_that_hymo_did_not_write_are_one_error(tmp_path: Path, info: str) -> None:
    path = save(tmp_path, 1)
    save_file({"w": torch.zeros(3, 2)}, path / "model/model.safetensors", {"DCP_SHARDING_INFO": info})
    (path / "manifest.json").unlink()
    checkpoint.seal(path)
    with pytest.raises(CheckpointError):
        checkpoint.open_checkpoint(path).load("model", groups()["model"], WORLD)


def test_tensors_that_do_not_match_are_named(tmp_path: Path) -> None:
    found = checkpoint.open_checkpoint(save(tmp_path, 1))
    with pytest.raises(CheckpointError, match=r"has \(3, 2\) for 'w' and the run \(2, 3\)"):
        found.load("model", {"w": torch.zeros(2, 3), "load": torch.zeros(4)}, WORLD)
    with pytest.raises(CheckpointError, match=r"has None for 'extra' and the run \(1,\)"):
        found.load("model", {**groups()["model"], "extra": torch.zeros(1)}, WORLD)


@pytest.mark.parametrize("file", ["model/model.safetensors", "rng/rank-00000.safetensors", "state.json"])
def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path, file: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.system, (f"touch {tmp_path / 'exploded'}",))

    path = save(tmp_path / "c", 1)
    (path / file).write_bytes(pickle.dumps(Bomb()))
    (path / "manifest.json").unlink()
    checkpoint.seal(path)       # checksums that agree: the content alone is hostile

    def read() -> None:
        found = checkpoint.open_checkpoint(path)
        found.load("model", groups()["model"], WORLD)
        found.restore_rng(WORLD)

    with pytest.raises(CheckpointError, match="must be"):
        read()
    assert not (tmp_path / "exploded").exists()


def test_tensors_of_another_type_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    save_file({"cpu": torch.zeros(7)}, path / "rng/rank-00000.safetensors")
    save_file({**groups()["model"], "w": torch.zeros(3, 2, dtype=torch.float64)}, path / "model/model.safetensors")
    (path / "manifest.json").unlink()
    checkpoint.seal(path)
    found = checkpoint.open_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"has torch\.float64 for 'w'"):
        found.load("model", groups()["model"], WORLD)
    with pytest.raises(CheckpointError, match="must be safetensors files"):
        found.restore_rng(WORLD)


def test_a_manifest_cannot_name_files_outside(tmp_path: Path) -> None:
    path = save(tmp_path / "c", 1)
    secret = tmp_path / "secret"
    secret.write_text("x")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../../secret"] = {"sha256": "0" * 64, "bytes": 1}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"differs in \.\./\.\./secret"):
        checkpoint.open_checkpoint(path)


def test_the_weights_are_an_ordinary_safetensors_file(tmp_path: Path) -> None:
    assert torch.equal(load_file(save(tmp_path, 4) / "model/model.safetensors")["w"], torch.full((3, 2), 4.0))
