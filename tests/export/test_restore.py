import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from hymo.errors import HymoError
from hymo.export.restore import import_folder
from hymo.trained import open_trained


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "exported")


def test_an_import_is_a_run_like_any_other(folder, trained, tmp_path):
    import_folder(folder, tmp_path / "runs" / "back")
    back = open_trained(tmp_path / "runs" / "back")
    assert back.recipe == trained.recipe
    assert back.step == trained.step
    assert back.tokenizer.fingerprint == trained.tokenizer.fingerprint
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(back.model(tokens), trained.model(tokens))


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def without(name):
    return lambda folder: (folder / name).unlink()


def other_weights(change):
    def apply(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("recipe.yaml"), r"has no recipe\.yaml"),
        (without("model.safetensors"), r"has no model\.safetensors"),
        (without("tokenizer.json"), r"has no tokenizer\.json"),
        (lambda folder: edit(folder, model_type="llama"), "must be of model_type hymo and name its step, but got 'llama'"),
        (lambda folder: edit(folder, step=None), "must be of model_type hymo and name its step, but got 'hymo' and None"),
        (lambda folder: edit(folder, hymo={}), r"config\.json and recipe\.yaml must describe one model"),
        (lambda folder: (folder / "config.json").write_text("[]"), "must be one that `hymo export` wrote"),
        (lambda folder: (folder / "config.json").write_text("{"), "must be one that `hymo export` wrote"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 100), r"model\.safetensors must be a safetensors file"),
        (other_weights(lambda tensors: tensors.pop("model.norm.weight")), "but got None for 'norm.weight' where the model has [(]16,[)]"),
        (other_weights(lambda tensors: tensors.update(more=torch.ones(2))), "but got [(]2,[)] for 'more' where the model has None"),
    ],
)
def test_a_folder_that_hymo_did_not_write_is_refused(folder, tmp_path, spoil, message):
    spoil(folder)
    with pytest.raises(HymoError, match=message):
        import_folder(folder, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_no_folder_is_overwritten(folder, tmp_path):
    (tmp_path / "back").mkdir()
    with pytest.raises(HymoError, match="the run folder must be new"):
        import_folder(folder, tmp_path / "back")
