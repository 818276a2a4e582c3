"""Any damage to what a run left on the disk: it is noticed, or it changes nothing; it is never a traceback."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from hymo.data import Data, open_data
from hymo.errors import CheckpointError, HymoError
from hymo.journal import Journal, read
from hymo.recipe import Recipe, load_recipe
from hymo.train import checkpoint, train
from hymo.train.feed import Feed
from hymo.train.parallel import World
from hymo.train.progress import Progress, check_same
from tests.fuzz.fuzzing import fuzz

WORLD = World(torch.device("cpu"))
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Data, Path]:
    """A recipe, its data and the checkpoint of a run of one step."""
    words = ["data=synthetic:copy", "model.vocab_size=257", "train.steps=1", "train.micro_batch=1", "train.device=cpu", "eval.tokens=64"]
    recipe = load_recipe("v1_0", ["model.pattern=MG", *words], scale="tiny")
    data, folder = open_data(recipe), tmp_path_factory.mktemp("run")
    train(recipe, run_dir=folder, data=data)
    return recipe, data, folder / "checkpoints" / "step-0000000001"


def outcome(action: Callable[[], object]) -> str:
    """What hymo says against it; nothing when it goes through."""
    try:
        action()
    except HymoError as error:
        return str(error) or "refused"
    return ""


@fuzz(50, 1000, place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), which=st.integers(0, 9))
def test_a_byte_that_changed_anywhere_in_a_checkpoint_is_noticed(saved: tuple[Recipe, Data, Path], place: float, flip: int, which: int) -> None:
    files = sorted(path for path in saved[2].rglob("*") if path.is_file() and path.name != "manifest.json")
    file = files[which % len(files)]
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[int(place * len(whole))] ^= flip
    try:
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            checkpoint.open_checkpoint(saved[2])
    finally:
        file.write_bytes(whole)


@fuzz(20, 500, data=st.data())
def test_a_file_of_anything_with_the_right_checksum_is_no_traceback(
    saved: tuple[Recipe, Data, Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whoever makes a checkpoint makes its manifest: bytes replaced, cut or put in, and sealed again."""
    path = saved[2]
    folder = tmp_path_factory.mktemp("hostile") / path.name
    shutil.copytree(path, folder)
    name = data.draw(st.sampled_from(["model/model.safetensors", "optimizer/optimizer.safetensors", "rng/rank-00000.safetensors"]))
    content = (folder / name).read_bytes()
    begin = data.draw(st.integers(0, 200) | st.integers(0, len(content)))
    gone = data.draw(st.integers(0, 40) | st.just(len(content)))
    (folder / name).write_bytes(content[:begin] + data.draw(st.binary(max_size=40)) + content[begin + gone:])
    (folder / "manifest.json").unlink()
    checkpoint.seal(folder)

    def load() -> None:
        found = checkpoint.open_checkpoint(folder)
        for group in ("model", "optimizer"):
            found.load(group, {key: value.clone() for key, value in TENSORS[group].items()}, WORLD)
        generator = torch.get_rng_state()
        found.restore_rng(WORLD)
        torch.set_rng_state(generator)

    outcome(load)
    shutil.rmtree(folder.parent)


TENSORS: dict[str, dict[str, torch.Tensor]] = {}


@pytest.fixture(scope="module", autouse=True)
def tensors(saved: tuple[Recipe, Data, Path]) -> None:
    from safetensors.torch import load_file

    TENSORS.update({group: load_file(saved[2] / group / f"{group}.safetensors") for group in ("model", "optimizer")})


@fuzz(50, 1000, data=st.data())
def test_a_state_of_anything_is_refused_in_one_line_or_goes_on(saved: tuple[Recipe, Data, Path], data: st.DataObject) -> None:
    recipe, opened, path = saved
    state: Any = copy.deepcopy(json.loads((path / "state.json").read_text()))
    places = [place for place in nodes(state) if place[:1] != ("recipe",)]
    *above, key = data.draw(st.sampled_from(places))
    node = state
    for step in above:
        node = node[step]
    node[key] = data.draw(JUNK)

    def resume() -> None:
        check_same(state, recipe, opened)
        feed = Feed(opened.train(), 1, 0, WORLD.device)
        try:
            feed.rewind(state["position"], Progress.of(state).skip)
        finally:
            feed.close()

    assert len(outcome(resume).splitlines()) <= 1


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, child in inner for place in [(*path, key), *nodes(child, (*path, key))]]


@fuzz(20, 500, lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8), cut=st.floats(0, 1))
def test_a_journal_cut_anywhere_loses_and_doubles_nothing(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], cut: float) -> None:
    """Killed at any byte, the run comes by the same steps again."""
    folder = tmp_path_factory.mktemp("journal")
    steps = [{f"m{i}": float(i * step) for i in range(length)} for step, length in enumerate(lengths, 1)]

    def write(first: int) -> None:
        journal = Journal(folder)
        for step in range(first, len(steps) + 1):
            journal.metrics(step, steps[step - 1])
        journal.close()

    write(1)
    path = folder / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: round(cut * len(whole))])
    on_record = max([event["step"] for event, _ in read(path)], default=0)
    write(max(1, on_record - 2))        # from a checkpoint some steps back
    assert [(event["step"], event["values"]) for event, _ in read(path)] == [(step, values) for step, values in enumerate(steps, 1)]
    shutil.rmtree(folder)
