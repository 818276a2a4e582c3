"""Run folders as training leaves them, without the training."""

from pathlib import Path

import torch

from hymo.data.tokenizer import JsonTokenizer
from hymo.data.train_tokenizer import save_tokenizer, train_tokenizer
from hymo.init import generator_for
from hymo.model import HyMo, build_hymo
from hymo.recipe import Recipe, dump, load_recipe, to_dict
from hymo.train import checkpoint
from hymo.train.parallel import World

TINY = (
    "model.pattern=MG", "model.d_model=16", "model.layers.M.ffn.inter_dim=16", "model.layers.G.mixer.d_inner=16", "model.mtp.inter_dim=16",
    "train.steps=6", "train.device=cpu", "run.tracking=none",
)  # fmt: skip


def tiny(*overrides: str) -> Recipe:
    """Two small layers with everything in them."""
    return load_recipe("v1_0", [*TINY, *overrides], scale="tiny")


def model_of(recipe: Recipe) -> HyMo:
    """A model whose every weight is off its initial value: a scale of one or a bias of zero would hide faults."""
    model = build_hymo(recipe).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator_for(1, name))
    return model


def make_run(folder: Path, *overrides: str, step: int = 6) -> Path:
    """A run folder whose newest checkpoint holds model_of(tiny(*overrides))."""
    recipe = tiny(*overrides)
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(dump(recipe))
    state = {"recipe": to_dict(recipe)}
    checkpoint.save(folder / "checkpoints", step, {"model": model_of(recipe).state_dict()}, state, World(torch.device("cpu")))
    return folder


def small_tokenizer(path: Path, entries: int = 300) -> JsonTokenizer:
    """A tokenizer.json of a few merges, written to `path`."""
    text = b"def forward(self, x): return self.norm(x) + self.mixer(x)\n" * 20
    found = train_tokenizer([text], entries)
    save_tokenizer(found, path)
    return found
