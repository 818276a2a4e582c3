import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hymo.data import Batch, open_data
from hymo.errors import DataError


def same(a: Batch, b: Batch) -> bool:
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.documents, b.documents)


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_interleave_to_the_batch_of_one_process(recipe, corpus: Path, world: int):
    r = recipe(source=str(corpus))
    whole = open_data(r).train()
    ranks = [open_data(r, rank, world).train() for rank in range(world)]
    for _ in range(12):         # beyond an epoch of 8 rows a step
        batch = whole.take(8)
        parts = [loader.take(8) for loader in ranks]
        for rank, part in enumerate(parts):
            assert torch.equal(part.tokens, batch.tokens[rank::world])
            assert torch.equal(part.documents, batch.documents[rank::world])


def test_steps_do_not_depend_on_how_they_are_taken(recipe, corpus: Path):
    data = open_data(recipe(source=str(corpus)))
    at_once, in_parts = data.train(), data.train()
    batch = at_once.take(12)
    assert same(batch.rows(0, 4), in_parts.take(4))
    assert same(batch.rows(4, 12), in_parts.take(8))


def test_resume_is_exact_and_in_another_world(recipe, corpus: Path):
    r = recipe(source=str(corpus))
    loader = open_data(r).train()
    loader.take(56)
    state = loader.state_dict()
    expected = loader.take(8)
    resumed = open_data(r, rank=1, world=2).train()
    resumed.load_state_dict(state)
    assert torch.equal(resumed.take(8).tokens, expected.tokens[1::2])


def test_resume_is_refused_when_a_file_changed(recipe, corpus: Path):
    r = recipe(source=str(corpus))
    state = open_data(r).train().state_dict()
    (corpus / "03.txt").write_text("something else")
    with pytest.raises(DataError, match=r"data fingerprint must be the '\w{16}' that the run began with, but got '\w{16}'"):
        open_data(r).train().load_state_dict(state)


@pytest.mark.parametrize(("change", "named"), [({"seed": 1}, "run.seed"), ({"seq_len": 8}, "train.seq_len"), ({"shuffle": False}, "data.shuffle")])
def test_resume_is_refused_when_a_setting_changed(recipe, corpus: Path, change, named: str):
    state = open_data(recipe(source=str(corpus))).train().state_dict()
    with pytest.raises(DataError, match=f"to resume, {named} must be"):
        open_data(recipe(source=str(corpus), **change)).train().load_state_dict(state)


def test_rows_that_do_not_divide_are_refused(recipe, corpus: Path):
    loader = open_data(recipe(source=str(corpus)), 0, 2).train()
    with pytest.raises(DataError, match=r"multiple of the number of processes, but got n_rows_global=7 and world=2"):
        loader.take(7)


READ = """
import hashlib, sys
from types import SimpleNamespace as N
from hymo.data import open_data
from hymo.recipe.tree import DataConfig, EvalConfig, RunConfig, TrainConfig
r = N(data=DataConfig(source=sys.argv[1], tokenizer="auto:300"), train=TrainConfig(steps=1, seq_len=16, tokens_per_step=128),
      eval=EvalConfig(tokens=64), run=RunConfig(seed=5), model=N(vocab_size=300))
loader = open_data(r).train()
print(hashlib.sha256(b"".join(loader.take(8).tokens.numpy().tobytes() for _ in range(9))).hexdigest())
"""


def test_two_processes_read_the_same(corpus: Path, tmp_path: Path):
    """Own caches and different hash seeds: nothing depends on Python's hash, on the order of a folder, or on who trained the tokenizer."""
    read = []
    for i in range(2):
        environment = {**os.environ, "HYMO_CACHE": str(tmp_path / f"cache{i}"), "PYTHONHASHSEED": str(i)}
        result = subprocess.run([sys.executable, "-c", READ, str(corpus)], env=environment, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        read.append(result.stdout.strip())
    assert read[0] == read[1]
    assert len(read[0]) == len(hashlib.sha256().hexdigest())
