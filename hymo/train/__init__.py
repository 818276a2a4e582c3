"""Training: `train(recipe, run_dir=...)`; see hymo/train/loop.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hymo.train.tracker import NullTracker, RunStart, Tracker

if TYPE_CHECKING:
    from hymo.train.loop import StepInfo, TrainResult, train

__all__ = ["NullTracker", "RunStart", "StepInfo", "Tracker", "TrainResult", "train"]


def __getattr__(name: str) -> Any:
    """`train` and its results import torch: when they are asked for."""
    if name in ("StepInfo", "TrainResult", "train"):
        from hymo.train import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
