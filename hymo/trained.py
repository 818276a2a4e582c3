"""What a run leaves behind, opened for use: its recipe, its model at the newest whole checkpoint, its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from hymo.data.synthetic import Numbers, open_task
from hymo.data.tokenizer import BytesTokenizer, Tokenizer, read_tokenizer
from hymo.errors import CheckpointError
from hymo.model import HyMo, build_hymo
from hymo.recipe import Recipe, load_recipe, recipe_from_dict, to_dict
from hymo.train import checkpoint
from hymo.train.checkpoint import Checkpoint
from hymo.train.parallel import World
from hymo.train.progress import differences
from hymo.train.schedule import total_steps

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Trained:
    """A trained model, in evaluation mode, fp32 weights."""

    folder: Path
    recipe: Recipe
    model: HyMo
    tokenizer: Tokenizer
    step: int           # optimizer steps behind the weights
    steps: int          # of the whole run

    @property
    def finished(self) -> bool:
        return self.step >= self.steps


def open_trained(folder: Path, device: torch.device | str = "cpu", *, allow_code: bool = False) -> Trained:
    """The run in `folder`. Raises CheckpointError when it has no whole checkpoint, or one that another recipe wrote."""
    recipe = load_recipe(folder / "recipe.yaml", allow_code=allow_code)
    found = newest(folder)
    check_own(found, recipe)
    model = empty_model(recipe, device)
    found.load("model", model.state_dict(), World(torch.device(device)))
    return Trained(folder, recipe, model, open_tokenizer(folder, recipe), found.step, total_steps(recipe.train))


def newest(folder: Path) -> Checkpoint:
    """The newest whole checkpoint of the run in `folder`."""
    found = checkpoint.latest(folder / "checkpoints")
    if found is None:
        raise CheckpointError(f"a run must have written a checkpoint to be used, but got none in {str(folder)!r}; `hymo resume` goes on with it")
    return found


def check_own(found: Checkpoint, recipe: Recipe) -> None:
    """Refuse the checkpoint of another model, with the differences. How it was trained is of no account here."""
    written = found.state.get("recipe")
    if not isinstance(written, dict):
        raise CheckpointError(f"a checkpoint must say which recipe wrote it, but {found.path} does not; hymo did not write it")
    model, wanted = to_dict(recipe_from_dict({**written, "blocks": []}))["model"], to_dict(recipe)["model"]
    if model != wanted:
        changed = list(differences(model, wanted, "model"))
        raise CheckpointError(f"a checkpoint must be its run's own, but {found.path} is of another model: {'; '.join(changed[:3])}")


def empty_model(recipe: Recipe, device: torch.device | str) -> HyMo:
    """The model of a recipe in evaluation mode, allocated and not filled: every weight is still to be loaded."""
    model = build_hymo(recipe, device="meta").to_empty(device=device).eval()
    for block in model.blocks():
        block.init_buffers()
    return model


def open_tokenizer(folder: Path, recipe: Recipe) -> Tokenizer:
    """The tokenizer that the run read its text with. Training keeps a copy of a tokenizer.json in the run folder: nothing is looked up elsewhere."""
    if recipe.data.source.startswith("synthetic:"):
        return Numbers(open_task(recipe.data.source.removeprefix("synthetic:"), recipe.data.options).vocab_size)
    file = folder / TOKENIZER
    if recipe.data.tokenizer == "bytes" and not file.is_file():
        return BytesTokenizer()
    if not file.is_file():
        raise CheckpointError(f"a run folder must hold its {TOKENIZER}, but got none in {str(folder)!r}; copy it there")
    return read_tokenizer(file)
