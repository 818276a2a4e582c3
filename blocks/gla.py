"""Gated linear attention: a decay for each key channel, and no erase term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.errors import RecipeError
from hymo.ops.linear_attention import Impl, linear_attention, resolve_impl
from hymo.ops.norm import gated_rms_norm

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig


@register("mixer", "gla")
class Gla(Block):
    """S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ,   o_t = S_tᵀ q_t / √K,   α = σ(W_2 W_1 x + b)^(1/τ)  (GLA, arXiv 2312.06635).

        y = W_o (RMSNorm(o) ⊙ SiLU(W_g x))

    x_BTD -> y_BTD. H heads, K wide keys, V = expand_v K wide values; the gate goes through rank `gate_rank`, τ is `gate_temperature`. Gates and
    state are fp32. No convolution and no position encoding, as published.
    """

    class Config(BlockConfig):
        """Heads, widths and the decay gate."""

        type: Literal["gla"] = "gla"
        n_heads: int = Field(default=4, gt=0, description="heads H")
        head_dim: int = Field(default=112, gt=0, description="width K of queries and keys")
        expand_v: float = Field(default=2.0, gt=0, description="width of values over head_dim; their product is whole")
        gate_rank: int = Field(default=16, gt=0, description="rank of the decay gate's projection")
        gate_temperature: float = Field(default=16.0, gt=0, description="τ: the larger, the slower the decay")
        impl: Impl = Field(default="auto", description="implementation of the recurrence")

        @property
        def value_dim(self) -> int:
            return round(self.head_dim * self.expand_v)

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if self.head_dim * self.expand_v != self.value_dim:
                raise RecipeError(f"gla.head_dim times expand_v must be whole, but got {self.head_dim=} and {self.expand_v=}")

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        c, d = config, layer.d_model
        keys, values = c.n_heads * c.head_dim, c.n_heads * c.value_dim
        self.q_proj = nn.Linear(d, keys, bias=False)
        self.k_proj = nn.Linear(d, keys, bias=False)
        self.v_proj = nn.Linear(d, values, bias=False)
        self.g_proj = nn.Linear(d, values, bias=False)
        self.a_proj = nn.Sequential(nn.Linear(d, c.gate_rank, bias=False), nn.Linear(c.gate_rank, keys))
        self.o_norm = nn.RMSNorm(c.value_dim, eps=layer.model.norm_eps)
        self.o_proj = nn.Linear(values, d, bias=False)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return self.step(x_BTD, None, ctx)[0]

    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        return torch.zeros(batch, self.config.n_heads, self.config.head_dim, self.config.value_dim, device=device)

    def step(self, x_BTD: Tensor, state: Tensor | None, ctx: Context) -> tuple[Tensor, Tensor]:
        c, heads = self.config, (self.config.n_heads, -1)
        q_BTHK, k_BTHK, v_BTHV = (project(x_BTD).unflatten(-1, heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        decay_BTHK = F.logsigmoid(self.a_proj(x_BTD).float()).unflatten(-1, heads) / c.gate_temperature
        ctx.measure("decay_rate", lambda: -decay_BTHK.mean(dim=-1))
        o_BTHV, state = linear_attention(
            q_BTHK * c.head_dim**-0.5, k_BTHK, v_BTHV, decay_BTHK, initial_state_BHKV=state, starts_BT=ctx.starts_BT, impl=c.impl
        )
        gate = self.g_proj(x_BTD).unflatten(-1, heads)
        y_BTD: Tensor = self.o_proj(gated_rms_norm(o_BTHV, gate, self.o_norm.weight, self.layer.model.norm_eps).flatten(-2))
        return y_BTD, state

    # -- accounting ---------------------------------------------------------------------------------------------------------------
    def mixing_flops(self, context: int) -> float:
        """The recurrence as written: per state number 1 to decay, 2 to write, 2 to read."""
        return 5.0 * self.config.n_heads * self.config.head_dim * self.config.value_dim

    def state_elems(self, context: int) -> int:
        return self.config.n_heads * self.config.head_dim * self.config.value_dim

    def kernels(self, device: torch.device | str) -> dict[str, str]:
        return {"linear_attention": resolve_impl(self.config.impl, device)}
