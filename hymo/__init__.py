"""hymo: decide what to build. A declarative framework for hybrid language-model stacks.

The names below are the public ones. They are looked up on first use, so `import hymo` (and `hymo --help`) imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hymo.block import Block, BlockConfig, Context, LayerInfo
    from hymo.model import build_hymo
    from hymo.recipe import Recipe, load_recipe
    from hymo.registry import BlockField, register

__all__ = ["Block", "BlockConfig", "BlockField", "Context", "LayerInfo", "Recipe", "build_hymo", "load_recipe", "register"]

_HOMES = {
    "Block": "hymo.block",
    "BlockConfig": "hymo.block",
    "BlockField": "hymo.registry",
    "Context": "hymo.block",
    "LayerInfo": "hymo.block",
    "Recipe": "hymo.recipe",
    "build_hymo": "hymo.model",
    "load_recipe": "hymo.recipe",
    "register": "hymo.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hymo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
