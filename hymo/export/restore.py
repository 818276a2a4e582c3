"""An exported folder as a run folder again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from hymo.data.cache import write_folder
from hymo.errors import HymoError
from hymo.export import CONFIG, MODEL, PREFIX, RECIPE
from hymo.model import build_hymo
from hymo.recipe import Recipe, load_recipe, to_dict
from hymo.train import checkpoint
from hymo.train.parallel import World
from hymo.train.progress import differences


def import_folder(source: Path, target: Path, *, allow_code: bool = False) -> Recipe:
    """Make the run folder `target` of what `export_run` wrote to `source`. It can be used like any other, but not trained further: an export holds
    no optimizer. Raises HymoError for a folder that hymo did not write, or that was changed."""
    if target.exists():
        raise HymoError(f"the run folder must be new, but {str(target)!r} exists; name another")
    config = read_config(source)
    recipe = load_recipe(source / RECIPE, allow_code=allow_code)
    if changed := list(differences(config.get("hymo"), to_dict(recipe)["model"], "model")):
        raise HymoError(f"{CONFIG} and {RECIPE} must describe one model, but got {'; '.join(changed[:3])} in {str(source)!r}; export the run again")
    tensors = read_weights(source, recipe)

    def build(folder: Path) -> None:
        shutil.copyfile(source / RECIPE, folder / RECIPE)
        if recipe.data.tokenizer != "bytes" and not recipe.data.source.startswith("synthetic:"):
            shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
        checkpoint.save(folder / "checkpoints", config["step"], {"model": tensors}, {"recipe": to_dict(recipe)}, World(torch.device("cpu")))

    write_folder(target, build)
    return recipe


def read_config(source: Path) -> dict[str, Any]:
    """config.json of a folder that hymo exported."""
    for name in (CONFIG, MODEL, RECIPE, "tokenizer.json"):
        if not (source / name).is_file():
            raise HymoError(f"a folder to import must be one that `hymo export` wrote, but {str(source)!r} has no {name}")
    try:
        config = json.loads((source / CONFIG).read_text(encoding="utf-8"))
        kind, step = config["model_type"], config.get("step")
    except (ValueError, KeyError, TypeError):
        raise HymoError(f"{CONFIG} must be one that `hymo export` wrote, but {str(source / CONFIG)!r} is not") from None
    if kind != "hymo" or not isinstance(step, int):
        raise HymoError(f"{CONFIG} must be of model_type hymo and name its step, but got {kind!r} and {step!r} in {str(source)!r}")
    return dict(config)


def read_weights(source: Path, recipe: Recipe) -> dict[str, torch.Tensor]:
    """The tensors of the model, under its own names. Raises HymoError unless names and shapes are those of the recipe's model."""
    try:
        found = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(source / MODEL).items()}
    except SafetensorError as error:
        raise HymoError(f"{MODEL} must be a safetensors file, but got {str(source / MODEL)!r} ({error})") from None
    wanted, held = (
        {name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (build_hymo(recipe, device="meta").state_dict(), found)
    )
    for name in sorted(wanted.keys() | held.keys()):
        if wanted.get(name) != held.get(name):
            got, must = held.get(name), wanted.get(name)
            raise HymoError(f"{MODEL} must hold the tensors of its recipe, but got {got} for {name!r} where the model has {must}")
    return found
