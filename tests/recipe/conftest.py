"""Small blocks of the tests' own, so that recipes are tested apart from the blocks that ship."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

import blocks.mtp
import blocks.none
import blocks.rope  # noqa: F401
from hymo import Block, BlockConfig, BlockField, registry
from hymo.errors import RecipeError

RECIPE = """\
name: small
model:
  vocab_size: 257
  d_model: 64
  pattern: AGGG*2
  layers:
    A:
      mixer: {type: narrow, heads: 4}
      ffn: wide
    G:
      mixer: {type: wide_mixer, state: 8}
optimizer:
  normuon: {lr: 2e-3, scaling: rms_norm}
  adamw: {lr: 1e-3}
train: {tokens: 1M, seq_len: 64, tokens_per_step: 256}
scales:
  half:
    model.d_model: 32
    model: {pattern: AG}
  double:
    data: builtin
    train: {steps: 3}
"""


class Narrow(Block):
    """A mixer with heads."""

    class Config(BlockConfig):
        type: Literal["narrow"] = "narrow"
        heads: int = Field(default=2, gt=0, description="heads")
        rope: Annotated[BlockConfig, BlockField("position")] | None = Field(default=None, description="own position encoding")

        def check(self, layer, model):
            if model.d_model % self.heads:
                raise RecipeError(f"d_model must be divisible by heads, but got {model.d_model=} and {self.heads=} in layer {layer.name}")


class WideMixer(Block):
    """A mixer with a state."""

    class Config(BlockConfig):
        type: Literal["wide_mixer"] = "wide_mixer"
        state: int = Field(gt=0, description="width of the state")
        gate: Literal["soft", "hard"] = Field(default="soft", description="kind of gate")


class Wide(Block):
    """An FFN."""

    class Config(BlockConfig):
        type: Literal["wide"] = "wide"
        inter_dim: int = Field(default=128, gt=0, description="hidden width")


NEEDED = [("ffn", "none"), ("position", "none"), ("position", "rope"), ("head", "mtp")]      # what a recipe's defaults name


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """A registry of these blocks and those that a recipe's defaults name; as it was afterwards."""
    monkeypatch.setattr(registry, "_blocks", {key: registry._blocks[key] for key in NEEDED})
    monkeypatch.setattr(registry, "_discovered", True)
    registry.register("mixer", "narrow")(Narrow)
    registry.register("mixer", "wide_mixer")(WideMixer)
    registry.register("ffn", "wide")(Wide)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A small valid recipe in a folder of its own."""
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return path
