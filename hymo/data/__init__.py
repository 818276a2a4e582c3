"""Text to batches. `open_data(recipe)` is the door; see hymo/data/open.py.

The names below are looked up on first use, so that preparing data and training tokenizers import no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hymo.data.batch import Batch
    from hymo.data.dataset import Data
    from hymo.data.loader import Loader
    from hymo.data.open import open_data
    from hymo.data.tokenizer import BytesTokenizer, Tokenizer

__all__ = ["Batch", "BytesTokenizer", "Data", "Loader", "Tokenizer", "open_data"]

_HOMES = {"Batch": "batch", "BytesTokenizer": "tokenizer", "Data": "dataset", "Loader": "loader", "Tokenizer": "tokenizer", "open_data": "open"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hymo.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hymo.data.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
