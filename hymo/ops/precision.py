"""Autocast, for operations that decide their own precision."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The type that autocast multiplies in on x's device, or x's own where it is off."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if kind != "meta" and torch.is_autocast_enabled(kind) else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A context in which products on x's device keep their operands' types. The meta device has no autocast."""
    kind = x.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
