"""Checkpoints that survive a kill, a full disk and a damaged file, and that execute nothing when they are read.

    checkpoints/step-0000001200/
        model/          parameters and buffers      safetensors: one file from a run of one process, a shard per rank (written by DCP) from
        optimizer/      moments and step counts     a run of several; either is read back on any number of ranks
        rng/            random generators, one file per rank
        state.json      step, loader, history, recipe, fingerprints
        manifest.json   sha256 and size of every file above

A checkpoint is written beside its place under a name that starts with a dot, brought to the disk, and renamed: it is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hymo.errors import CheckpointError
from hymo.files import read_small
from hymo.train.parallel import World
from hymo.train.sharded import read_plain, read_sharded, shapes, write_plain, write_sharded

FORMAT = 1
JSON_BYTES = 1 << 26        # of a state.json, which holds a loss a step: some three million steps
Groups = Mapping[str, Mapping[str, Tensor]]      # {"model": {name: tensor}, "optimizer": …}
log = logging.getLogger("hymo")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk, every file of it found whole."""

    path: Path
    step: int
    state: dict[str, Any]

    def load(self, group: str, into: Mapping[str, Tensor], world: World) -> None:
        """Read the tensors of `group` ("model", "optimizer") into those of `into`, in place. Raises CheckpointError unless names and shapes match."""
        folder = self.path / group
        try:
            found = shapes(folder)
        except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise foreign(folder, error) from None
        for name in sorted(into.keys() | found.keys()):
            wanted = tuple(into[name].shape) if name in into else None
            if wanted != found.get(name):
                raise CheckpointError(
                    f"a checkpoint must hold the run's own tensors, but {self.path} has {found.get(name)} for {name!r} and the run {wanted}; "
                    "resume with the recipe and the hymo that wrote it"
                )
        if world.size == 1 and self.state["ranks"] == 1:
            read_plain(folder, into)
        else:
            read_sharded(folder, into, world)

    def restore_rng(self, world: World) -> None:
        """Set this rank's random generators as they were; those of a rank that the checkpoint does not know stay."""
        file = self.path / "rng" / f"rank-{world.rank:05d}.safetensors"
        try:
            found = load_file(file) if file.is_file() else {}
        except SafetensorError as error:
            raise foreign(file, error) from None
        try:
            if "cpu" in found:
                torch.set_rng_state(found["cpu"])
            if "cuda" in found and world.device.type == "cuda":
                torch.cuda.set_rng_state(found["cuda"], world.device)
        except (TypeError, RuntimeError) as error:
            raise foreign(file, error) from None


def save(root: Path, step: int, groups: Groups, state: Mapping[str, Any], world: World, keep_last: int = 2, keep_every: int | None = None) -> Path:
    """Write the checkpoint of `step` and let older ones go, but for the `keep_last` newest and the multiples of `keep_every`.

    `state` is anything JSON holds. Called by all ranks. Raises CheckpointError when the disk does not take it, on all ranks; nothing is left of
    it then, and the checkpoints before it are as they were.
    """
    target = root / f"step-{step:010d}"
    partial = root / f".{target.name}.partial"

    def prepare() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in ("rng", *groups):
            (partial / folder).mkdir(parents=True)

    def write() -> None:
        for name, tensors in groups.items():
            if world.size == 1:
                write_plain(partial / name / f"{name}.safetensors", tensors)
            else:
                write_sharded(partial / name, tensors)
        generators = {"cpu": torch.get_rng_state()}
        if world.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(world.device)
        write_plain(partial / "rng" / f"rank-{world.rank:05d}.safetensors", generators)

    def finish() -> None:
        (partial / "state.json").write_text(json.dumps({**state, "step": step, "ranks": world.size}))
        seal(partial)
        publish(partial, target)
        rotate(root, keep_last, keep_every)

    try:
        together(world, prepare, first_only=True)
        together(world, write)
        together(world, finish, first_only=True)
    except OSError as error:
        if world.first:
            shutil.rmtree(partial, ignore_errors=True)
        raise refusal(root, groups, error) from None
    return target


def together(world: World, action: Callable[[], None], first_only: bool = False) -> None:
    """Run `action` on every rank (or on the first) and raise OSError on all of them when it failed on one: nobody is left waiting."""
    problem: OSError | SafetensorError | None = None
    if world.first or not first_only:
        try:
            action()
        except (OSError, SafetensorError) as error:
            problem = error
    if not world.everywhere(problem is None):
        raise OSError(str(problem or "another rank could not write"))


def seal(folder: Path) -> None:
    """Bring every file to the disk and write the manifest over them."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.relative_to(folder).as_posix()] = {"sha256": digest, "bytes": path.stat().st_size}
    with (folder / "manifest.json").open("w") as file:
        json.dump({"format": FORMAT, "files": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    for directory in (*(p for p in folder.rglob("*") if p.is_dir()), folder):
        sync_directory(directory)


def publish(partial: Path, target: Path) -> None:
    """Give the checkpoint its name; one that had it (damaged, or of a run that was rolled back) steps aside first."""
    aside = partial.with_suffix(".replaced")
    if target.exists():
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
    partial.rename(target)
    sync_directory(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Bring a folder's own entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rotate(root: Path, keep_last: int, keep_every: int | None) -> None:
    """Delete what neither rule keeps."""
    for path in paths(root)[:-keep_last]:
        if keep_every is None or step_of(path) % keep_every:
            shutil.rmtree(path)


def paths(root: Path) -> list[Path]:
    """The checkpoints in `root` by step, the oldest first. They may be damaged."""
    return sorted(p for p in root.glob("step-*") if p.is_dir() and re.fullmatch(r"step-\d{10}", p.name))


def step_of(path: Path) -> int:
    """The step in a checkpoint's name."""
    return int(path.name.removeprefix("step-"))


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`. Raises CheckpointError when a file is missing, or is not what the manifest says."""
    try:
        manifest = json.loads(read_small(path / "manifest.json", JSON_BYTES))
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"a checkpoint must be of format {FORMAT}, but got {manifest['format']} in {path}; use the hymo that wrote it")
        found = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()} - {"manifest.json"}
        if found != set(manifest["files"]):
            names = ", ".join(sorted(found ^ set(manifest["files"])))
            raise CheckpointError(f"a checkpoint must hold the files of its manifest, but {path} differs in {names}")
        for name, fact in manifest["files"].items():
            with (path / name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != fact["bytes"] or hashlib.file_digest(file, "sha256").hexdigest() != fact["sha256"]:
                    raise CheckpointError(f"a checkpoint's files must be as they were written, but {path / name} has another size or checksum")
        state = json.loads(read_small(path / "state.json", JSON_BYTES))
        return Checkpoint(path, int(state["step"]), state)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"a checkpoint must be readable, but {path} is not: {type(error).__name__} {error}") from None


def latest(root: Path) -> Checkpoint | None:
    """The newest whole checkpoint in `root`, with a warning for every damaged one passed over; None where there is none.

    Raises CheckpointError when there are some and none is whole.
    """
    found = paths(root)
    damaged: list[str] = []
    for path in reversed(found):
        try:
            whole = open_checkpoint(path)
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        for words in damaged:
            log.warning("a checkpoint is damaged and one before it, %s, is used instead: %s", path.name, words)
        return whole
    if found:
        raise CheckpointError(f"one checkpoint at least must be whole, but all {len(found)} in {root} are damaged ({damaged[0]}); start a new run")
    return None


def discard_partial(root: Path) -> None:
    """Clear away what a killed process left: half-written ones go; one that had stepped aside for its successor comes back if that never came."""
    for aside in root.glob(".step-*.replaced"):
        target = root / aside.stem.removeprefix(".")
        if not target.exists():
            aside.rename(target)
    for path in (*root.glob(".step-*.partial"), *root.glob(".step-*.replaced")):
        shutil.rmtree(path, ignore_errors=True)


def foreign(path: Path, error: Exception) -> CheckpointError:
    """What to say of tensors that are not in the form that hymo writes, though their checksum is right."""
    return CheckpointError(f"a checkpoint's tensors must be safetensors files, but got {path} ({error}); hymo did not write it")


def refusal(root: Path, groups: Groups, problem: OSError) -> CheckpointError:
    """What to say when the disk does not take a checkpoint."""
    needed = sum(t.numel() * t.element_size() for tensors in groups.values() for t in tensors.values())
    free = shutil.disk_usage(root if root.exists() else root.parent).free
    return CheckpointError(
        f"a checkpoint must fit on the disk, but {root} did not take {needed / 2**30:.3g} GiB with {free / 2**30:.3g} GiB free "
        f"({' '.join(str(problem).split())}); free some space and resume: the checkpoints before it are intact"
    )
