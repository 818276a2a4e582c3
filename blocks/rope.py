"""Rotary position encoding."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from hymo import Block, BlockConfig, Context, register
from hymo.ops.rotary import frequencies, rotate, rotation_table


@register("position", "rope")
class Rope(Block):
    """Pair (2k, 2k+1) of a head of width K is turned by position · theta^(−2k/K)  (RoPE, arXiv 2104.09864).

    x_BTHK -> x_BTHK, K even. Positions come from the context. The table of a pass is made from the positions it asks for, in fp32, once for all
    layers, and kept nowhere else: it has no length to run out of, no dtype to be cast to, and no place in a checkpoint.
    """

    class Config(BlockConfig):
        """Base of the frequencies."""

        type: Literal["rope"] = "rope"
        theta: float = Field(default=10_000.0, gt=0, description="base of the frequencies: the slowest pair turns by 1/theta radian a token")

    config: Config

    def forward(self, x_BTHK: Tensor, ctx: Context) -> Tensor:
        return rotate(x_BTHK, self.rotation(x_BTHK.shape[-1], ctx))

    def rotation(self, width: int, ctx: Context) -> Tensor:
        return ctx.once((self.key, width), lambda: self.table(width, ctx))

    def table(self, width: int, ctx: Context) -> Tensor:
        return rotation_table(ctx.positions_BT, frequencies(width, self.config.theta, ctx.positions_BT.device))

    def mixing_flops(self, context: int) -> float:
        return 0.0

    def state_elems(self, context: int) -> int:
        return 0
