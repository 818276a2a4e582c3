"""The absence of a block, by name: positions left unwritten, or a layer without a feed-forward sub-layer."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hymo import Block, BlockConfig, Context, register


@register("position", "none")
class NoPosition(Block):
    """x -> x: no position encoding (NoPE, arXiv 2305.19466). Widths, scales and parameters stay, so that only the rotation is removed."""

    class Config(BlockConfig):
        """Nothing to set."""

        type: Literal["none"] = "none"

    def forward(self, x_BTHK: Tensor, ctx: Context) -> Tensor:
        return x_BTHK

    def mixing_flops(self, context: int) -> float:
        return 0.0

    def state_elems(self, context: int) -> int:
        return 0


@register("ffn", "none")
class NoFfn(Block):
    """x -> 0: what a residual stream gains from a sub-layer that is not there. The stack leaves the whole sub-layer out, norm included."""

    class Config(BlockConfig):
        """Nothing to set."""

        type: Literal["none"] = "none"

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return torch.zeros_like(x_BTD)

    def mixing_flops(self, context: int) -> float:
        return 0.0

    def state_elems(self, context: int) -> int:
        return 0
