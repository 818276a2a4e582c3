"""Rotary position encoding with positions interpolated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from hymo import Block, BlockConfig, Context, register
from hymo.ops.rotary import frequencies, rotate, rotation_table


@register("position", "rope_linear")
class RopeLinear(Block):
    """RoPE with every position divided by `factor`  (position interpolation, arXiv 2306.15595): factor · max_seq_len tokens span the angles
    of max_seq_len.

    x_BTHK -> x_BTHK, K even.
    """

    class Config(BlockConfig):
        """Base and factor."""

        type: Literal["rope_linear"] = "rope_linear"
        theta: float = Field(default=10_000.0, gt=0, description="base of the frequencies")
        factor: float = Field(ge=1, description="how many times longer than the trained context")

    config: Config

    def forward(self, x_BTHK: Tensor, ctx: Context) -> Tensor:
        return rotate(x_BTHK, self.rotation(x_BTHK.shape[-1], ctx))

    def rotation(self, width: int, ctx: Context) -> Tensor:
        return ctx.once((self.key, width), lambda: self.table(width, ctx))

    def table(self, width: int, ctx: Context) -> Tensor:
        return rotation_table(ctx.positions_BT, frequencies(width, self.config.theta, ctx.positions_BT.device) / self.config.factor)

    def mixing_flops(self, context: int) -> float:
        return 0.0

    def state_elems(self, context: int) -> int:
        return 0
