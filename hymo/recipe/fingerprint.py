"""What two recipes must share to give the same result.

sha256 over the stack as resolved (so "MG MG" and "MG*2" agree) and every other setting, without those that cannot move a weight or a
reported number by more than the rounding of a sum: names, folders, logging, how often validation and checkpoints happen, and how the
work is laid on the device. Block files count by their content, not by their path.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hymo.errors import RecipeError
from hymo.recipe.dump import to_dict
from hymo.recipe.stack import resolve_stack
from hymo.recipe.tree import Recipe

IRRELEVANT = {
    "model": ("pattern", "layers", "overrides", "swap"),        # replaced by the resolved stack
    "data": ("max_epochs",),                                    # a limit: it refuses, it changes nothing
    "train": ("device", "threads", "micro_batch", "compile", "checkpoint_activations"),
    "eval": ("every",),
    "run": ("output", "experiment", "tracking", "log_every", "checkpoint_every", "keep_last", "keep_every"),
}


def fingerprint(recipe: Recipe) -> str:
    """16 hexadecimal digits that change when, and only when, the recipe's result may."""
    settings = to_dict(recipe)
    del settings["name"]
    for section, keys in IRRELEVANT.items():
        for key in keys:
            del settings[section][key]
    settings["model"]["stack"] = [_layer(layer) for layer in resolve_stack(recipe.model)]
    settings["blocks"] = sorted(_digest(Path(file)) for file in recipe.blocks)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _layer(layer: Any) -> list[Any]:
    return [layer.info.name, layer.mixer.model_dump(mode="json"), layer.ffn.model_dump(mode="json")]


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise RecipeError(f"a recipe's block file must be readable, but got {error.strerror} for {str(file)!r}") from None
