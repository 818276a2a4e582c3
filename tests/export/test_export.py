import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import hymo.export.registered
from hymo import registry
from hymo.errors import HymoError
from hymo.export import block_modules, export_run
from hymo.export.restore import import_folder
from hymo.generate import Limits, generate
from hymo.model import build_hymo
from hymo.trained import Trained, open_trained
from tests.made import make_run, model_of, tiny

PROMPTS = ["def f(x):", "a", "return se"]
OWN_BLOCK = '''
from typing import Literal

from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register


@register("ffn", "my_ffn")
class MyFfn(Block):
    """y = W x."""

    class Config(BlockConfig):
        """Nothing to set."""

        type: Literal["my_ffn"] = "my_ffn"

    def __init__(self, config: BlockConfig, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        self.linear = nn.Linear(layer.d_model, layer.d_model, bias=False)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return self.linear(x_BTD)

    def mixing_flops(self, context: int) -> float:
        return 0.0

    def state_elems(self, context: int) -> int:
        return 0
'''


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_folder_holds_what_transformers_asks_for(exported):
    names = set(contents(exported))
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "recipe.yaml"} <= names
    assert {"modeling_hymo.py", "registered.py", "hymo_model.py", "blocks_gdn.py", "blocks_mla.py", "blocks_dense_ffn.py", "blocks_rope.py"} <= names
    assert not {"blocks_kda.py", "hymo_recipe_load.py", "hymo_data.py"} & names, "only what the model needs"
    config = json.loads((exported / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"], config["hidden_size"], config["num_hidden_layers"], config["step"]) == ("hymo", 257, 16, 2, 6)
    assert config["hymo"]["layers"]["G"]["mixer"]["d_inner"] == 16
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in exported.iterdir())


def test_the_weights_are_the_runs(exported, trained):
    with safe_open(exported / "model.safetensors", "pt") as file:
        state = trained.model.state_dict()
        assert set(file.keys()) == {f"model.{name}" for name in state}
        assert all(torch.equal(file.get_tensor(f"model.{name}"), tensor) for name, tensor in state.items())


def test_export_import_export_gives_the_same_bytes(exported, trained, merged, tmp_path):
    for opened, first in ((trained, exported), (merged, tmp_path / "merged")):
        if first is not exported:
            export_run(opened, first)
        import_folder(first, tmp_path / f"back-{first.name}")
        export_run(open_trained(tmp_path / f"back-{first.name}"), tmp_path / f"again-{first.name}")
        assert contents(tmp_path / f"again-{first.name}") == contents(first)


def test_transformers_loads_it_where_hymo_is_not_installed(exported, trained, tmp_path):
    """Logits, greedy decoding of a padded batch, beams, loss, bf16, initial weights."""
    script = Path(__file__).with_name("load_without_hymo.py")
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, str(script), str(exported), *PROMPTS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["modules"] == []
    ids = torch.tensor([trained.tokenizer.encode(PROMPTS[0])])
    assert found["ids"] == ids[0].tolist()
    with torch.no_grad():
        logits = trained.model(ids)
    torch.testing.assert_close(torch.tensor(found["logits"]), logits[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(found["last"]), logits[0, -1], atol=1e-5, rtol=0)
    expected = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
    ours = [completion.tokens for completion in generate(trained.model, trained.tokenizer, [p.encode() for p in PROMPTS], Limits(8))]
    assert found["greedy"] == ours
    assert found["no_cache"] == ids[0].tolist() + ours[0]
    assert found["beam"] == found["beam_no_cache"]
    assert len(found["half"]) == ids.shape[1] + 8
    assert found["counters"] == 0, "what is never saved starts at zero"
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(found["untrained"]), build_hymo(trained.recipe, seed=0)(ids)[0], atol=1e-5, rtol=0)
    assert found["end"] == ["<|endoftext|>", 256, trained.tokenizer.encode("<|endoftext|>")]


def test_a_block_of_the_recipes_own_comes_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_ffn.py").write_text(OWN_BLOCK)
    run = make_run(tmp_path / "run", f"blocks=[{tmp_path / 'my_ffn.py'}]", "model.layers.G.ffn={type: my_ffn}")
    export_run(open_trained(run), tmp_path / "out")
    text = (tmp_path / "out" / "blocks_my_ffn.py").read_text()
    assert "from .hymo_block import Block, BlockConfig, Context, LayerInfo\nfrom .hymo_registry import register\n" in text
    assert "from .blocks_my_ffn import" in (tmp_path / "out" / "registered.py").read_text()


def test_a_block_of_another_package_is_refused(monkeypatch):
    monkeypatch.setattr(registry.get("ffn", "dense_ffn"), "__module__", "elsewhere.blocks")
    with pytest.raises(HymoError, match=r"must be hymo's or a file listed in `blocks`, but got ffn 'dense_ffn' of elsewhere\.blocks"):
        block_modules({("ffn", "dense_ffn")})


def test_a_task_of_numbers_has_no_end_of_text(tmp_path):
    run = open_trained(make_run(tmp_path / "run", "data.source=synthetic:mqar", "data.options={vocab: 64}"))
    export_run(run, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] is None


def test_nothing_is_overwritten_and_nothing_stays_half_written(trained, exported, tmp_path, monkeypatch):
    before = contents(exported)
    with pytest.raises(HymoError, match="the folder of an export must be new"):
        export_run(trained, exported)
    assert contents(exported) == before

    def full(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("hymo.export.save_file", full)
    with pytest.raises(KeyboardInterrupt):
        export_run(trained, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_registered_knows_every_block():
    assert hymo.export.registered.discover is registry.discover
    assert {"gdn", "mla"} <= set(registry.names("mixer"))


def test_made_by_hand(trained):
    assert isinstance(trained, Trained)
    assert torch.equal(trained.model.embedding.weight, model_of(tiny()).embedding.weight)
