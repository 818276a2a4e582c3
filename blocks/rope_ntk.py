"""Rotary position encoding with its base raised."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from hymo import Block, BlockConfig, Context, register
from hymo.ops.rotary import frequencies, rotate, rotation_table


@register("position", "rope_ntk")
class RopeNtk(Block):
    """RoPE with base theta · factor^(K/(K−2))  (NTK-aware scaling, section 3.1 of arXiv 2309.00071): the slowest pair turns `factor` times
    slower, the fastest as before, and the others by a geometric progression between them.

    x_BTHK -> x_BTHK, K even.
    """

    class Config(BlockConfig):
        """Base and factor."""

        type: Literal["rope_ntk"] = "rope_ntk"
        theta: float = Field(default=10_000.0, gt=0, description="base of the frequencies before scaling")
        factor: float = Field(ge=1, description="how many times longer than the trained context")

    config: Config

    def forward(self, x_BTHK: Tensor, ctx: Context) -> Tensor:
        return rotate(x_BTHK, self.rotation(x_BTHK.shape[-1], ctx))

    def rotation(self, width: int, ctx: Context) -> Tensor:
        return ctx.once((self.key, width), lambda: self.table(width, ctx))

    def table(self, width: int, ctx: Context) -> Tensor:
        # One pair alone is the fastest and does not slow down; K−2 would be 0.
        base = self.config.theta * self.config.factor ** (width / (width - 2)) if width > 2 else self.config.theta
        return rotation_table(ctx.positions_BT, frequencies(width, base, ctx.positions_BT.device))

    def mixing_flops(self, context: int) -> float:
        return 0.0

    def state_elems(self, context: int) -> int:
        return 0
