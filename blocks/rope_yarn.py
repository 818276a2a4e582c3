"""Rotary position encoding interpolated pair by pair."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.errors import RecipeError
from hymo.ops.rotary import frequencies, rotate, rotation_table

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig


@register("position", "rope_yarn")
class RopeYarn(Block):
    """RoPE at frequencies (1 − γ_k) θ_k / factor + γ_k θ_k, the rotated heads times √(1/t)  (YaRN, arXiv 2309.00071).

    r_k = max_seq_len · θ_k / 2π is how often pair k turns within the trained context; γ_k rises from 0 at r_k = beta_slow (interpolated in
    full: the pair never saw a whole turn) to 1 at beta_fast (left alone). √(1/t) = 0.1 ln(factor) + 1 sharpens the softmax through q and k.

    x_BTHK -> x_BTHK, K even.
    """

    class Config(BlockConfig):
        """Base, factor and the ramp between pairs."""

        type: Literal["rope_yarn"] = "rope_yarn"
        theta: float = Field(default=10_000.0, gt=0, description="base of the frequencies before scaling")
        factor: float = Field(ge=1, description="how many times longer than the trained context")
        beta_fast: float = Field(default=32.0, gt=0, description="pairs that turn at least this often in the trained context keep their frequency")
        beta_slow: float = Field(default=1.0, gt=0, description="pairs that turn at most this often are divided by factor; below beta_fast")
        attention_factor: float | None = Field(default=None, gt=0, description="what rotated heads are multiplied by; null: 0.1 ln(factor) + 1")

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if self.beta_slow >= self.beta_fast:
                raise RecipeError(f"rope_yarn.beta_slow must be below beta_fast, but got {self.beta_slow=} and {self.beta_fast=}; swap them")

    config: Config

    def forward(self, x_BTHK: Tensor, ctx: Context) -> Tensor:
        return rotate(x_BTHK, self.rotation(x_BTHK.shape[-1], ctx))

    def rotation(self, width: int, ctx: Context) -> Tensor:
        return ctx.once((self.key, width), lambda: self.table(width, ctx))

    def table(self, width: int, ctx: Context) -> Tensor:
        c = self.config
        theta_P = frequencies(width, c.theta, ctx.positions_BT.device)
        turns_P = self.layer.model.max_seq_len * theta_P / (2 * math.pi)
        gamma_P = ((turns_P - c.beta_slow) / (c.beta_fast - c.beta_slow)).clamp(0, 1)
        scale = 0.1 * math.log(c.factor) + 1 if c.attention_factor is None else c.attention_factor
        return scale * rotation_table(ctx.positions_BT, torch.lerp(theta_P / c.factor, theta_P, gamma_P))

    def mixing_flops(self, context: int) -> float:
        return 0.0

    def state_elems(self, context: int) -> int:
        return 0
