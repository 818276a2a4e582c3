"""Copy this file to blocks/<name>.py, rename, and write one test: tests/blocks/test_<name>.py.

    from hymo.testing import MixerContract

    class TestMovingAverage(MixerContract):
        configs = {"default": {"type": "moving_average"}}

That is all: `hymo blocks list` shows the block, a recipe may say `mixer: {type: moving_average}`, and the suite has checked causality, documents,
decoding, accounting and the rest. A file whose name begins with an underscore, like this one, is not discovered.

A block maps and does nothing else: no norm, no residual (the stack has them), no `**kwargs`. What it may know of the pass is in Context
(hymo/block.py), of its place in the stack in LayerInfo. Other blocks are built with `hymo.registry.build`, never imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.errors import RecipeError
from hymo.ops.short_conv import short_conv

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig


@register("mixer", "moving_average")
class MovingAverage(Block):
    """y_t = Σ_j w_j ⊙ x_{t−j}, j = 0 … width−1.           <- open with the equation and where it comes from

    x_BTD -> y_BTD.                                         <- shapes, units, errors raised
    """

    class Config(BlockConfig):
        """Width of the window."""

        type: Literal["moving_average"] = "moving_average"                                  # the registered name, which is the file's
        width: int = Field(default=4, gt=0, description="tokens averaged, the present one included")   # every field says what it is

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            """Rules between fields, or with the model: run when the recipe is loaded. A rule on one field belongs in Field."""
            if self.width > model.max_seq_len:
                raise RecipeError(f"moving_average.width must be at most max_seq_len, but got {self.width=} and {model.max_seq_len=}")

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        self.weight_DW = nn.Parameter(torch.empty(layer.d_model, config.width))             # allocate only; init_parameter fills

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return short_conv(x_BTD, self.weight_DW, starts_BT=ctx.starts_BT)[0]

    # -- decoding: the same, token by token or in chunks ----------------------------------------------------------------------------
    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        return torch.zeros(batch, self.config.width - 1, self.layer.d_model, device=device, dtype=dtype)

    def step(self, x_BTD: Tensor, state: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        return short_conv(x_BTD, self.weight_DW, history_BWD=state, starts_BT=ctx.starts_BT)

    # -- accounting: no defaults, because a silent zero would corrupt every comparison at equal FLOPs ---------------------------------
    def mixing_flops(self, context: int) -> float:
        return 2.0 * self.config.width * self.layer.d_model

    def state_elems(self, context: int) -> int:
        return (self.config.width - 1) * self.layer.d_model

    # -- initial values of parameters that are not part of an nn.Linear, convolution or norm ------------------------------------------
    def init_parameter(self, name: str, weight: Tensor, generator: torch.Generator) -> bool:
        if name != "weight_DW":
            return False
        weight.fill_(1 / self.config.width)
        return True
