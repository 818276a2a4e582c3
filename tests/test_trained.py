import json
import shutil

import pytest
import torch

from hymo.data.synthetic import Numbers
from hymo.errors import CheckpointError
from hymo.train import checkpoint
from hymo.trained import open_trained
from tests.made import make_run, model_of, small_tokenizer, tiny


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs" / "a")


def test_a_run_comes_back_as_it_was_written(run):
    opened, expected = open_trained(run), model_of(tiny()).state_dict()
    assert opened.recipe == tiny()
    assert all(torch.equal(value, expected[name]) for name, value in opened.model.state_dict().items())
    assert not opened.model.training
    assert (opened.step, opened.steps, opened.finished) == (6, 6, True)
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(opened.model(tokens), model_of(tiny())(tokens))


def test_an_unfinished_run_says_so(tmp_path):
    assert not open_trained(make_run(tmp_path / "a", step=3)).finished


def test_tokenizers_are_the_runs_own(tmp_path):
    assert open_trained(make_run(tmp_path / "a")).tokenizer.name == "bytes"
    run = make_run(tmp_path / "b", "data.tokenizer=auto:300", "model.vocab_size=300")
    kept = small_tokenizer(run / "tokenizer.json")
    assert open_trained(run).tokenizer.fingerprint == kept.fingerprint
    (run / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"must hold its tokenizer\.json"):
        open_trained(run)
    task = open_trained(make_run(tmp_path / "c", "data.source=synthetic:mqar")).tokenizer
    assert isinstance(task, Numbers)


def test_training_keeps_its_tokenizer(tmp_path, monkeypatch):
    from hymo.recipe import dump
    from hymo.train import train

    monkeypatch.setenv("HYMO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    for i in range(30):
        (tmp_path / "text" / f"{i}.txt").write_text(f"state and decay {i} of the heads " * 4)
    sizes = ["train.steps=1", "train.seq_len=16", "train.tokens_per_step=16", "eval.tokens=16", "train.threads=1", "data.validation_frac=0.3"]
    recipe = tiny(*sizes, f"data.source={tmp_path / 'text'}", "data.tokenizer=auto:270", "model.vocab_size=270")
    train(recipe, run_dir=tmp_path / "run")
    (tmp_path / "run" / "recipe.yaml").write_text(dump(recipe))
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(tmp_path / "text")        # nothing but the folder is needed from here on
    opened = open_trained(tmp_path / "run")
    assert opened.tokenizer.decode(opened.tokenizer.encode("state and decay")) == "state and decay"
    assert opened.tokenizer.vocab_size <= 270


def test_a_run_without_a_checkpoint(run):
    shutil.rmtree(run / "checkpoints" / "step-0000000006")
    (run / "checkpoints" / ".step-0000000006.partial").mkdir()      # what a killed process leaves
    with pytest.raises(CheckpointError, match="must have written a checkpoint to be used, but got none in"):
        open_trained(run)


def test_a_damaged_checkpoint(run):
    [file] = run.rglob("model.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"all 1 in .* are damaged"):
        open_trained(run)


def test_the_checkpoint_of_another_model(run, tmp_path):
    shutil.copy(make_run(tmp_path / "b", "model.d_model=24") / "recipe.yaml", run)
    with pytest.raises(CheckpointError, match=r"is of another model: model\.d_model=24 where it was 16"):
        open_trained(run)


def test_how_it_was_trained_is_of_no_account(run, tmp_path):
    shutil.copy(make_run(tmp_path / "b", "train.steps=9", "run.seed=3") / "recipe.yaml", run)
    assert open_trained(run).steps == 9


def test_a_checkpoint_that_hymo_did_not_write(run):
    [folder] = (run / "checkpoints").iterdir()
    (folder / "state.json").write_text(json.dumps({"step": 6}))
    (folder / "manifest.json").unlink()
    checkpoint.seal(folder)
    with pytest.raises(CheckpointError, match="must say which recipe wrote it"):
        open_trained(run)
