"""Mamba-2: a scalar decay a head, writes scaled by the time step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.errors import RecipeError
from hymo.ops.decay import init_dt_bias, init_rate, timestep
from hymo.ops.linear_attention import Impl, linear_attention, resolve_impl
from hymo.ops.norm import rms_norm
from hymo.ops.short_conv import resolve_impl as resolve_conv
from hymo.ops.short_conv import short_conv

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig

State = tuple[Tensor, Tensor]       # the convolution's last inputs (B, d_conv-1, channels) and the recurrent state (B, H, S, V), fp32


@register("mixer", "mamba2")
class Mamba2(Block):
    """H_t = exp(−A Δ_t) H_{t−1} + B_t (Δ_t x_t)ᵀ,   o_t = H_tᵀ C_t + D x_t  (state-space duality, arXiv 2405.21060).

        [x | B | C] = SiLU(conv(W u)),   z = W_z u,   Δ = softplus(W_dt u + dt_bias),   A = exp(A_log) > 0
        y = W_o RMSNorm(o ⊙ SiLU(z))

    u_BTD -> y_BTD; H heads of width V share B and C, S wide, within each of `n_groups` groups. The state is fp32; A starts uniform in (1, 16),
    Δ log-uniform in (1e-3, 0.1), D at 1. The convolution has a bias, as published. No position encoding.
    """

    class Config(BlockConfig):
        """Widths, heads and groups."""

        type: Literal["mamba2"] = "mamba2"
        d_inner: int = Field(default=1792, gt=0, description="width of x; a multiple of head_dim")
        head_dim: int = Field(default=64, gt=0, description="width V of a head")
        d_state: int = Field(default=128, gt=0, description="width S of B and C")
        n_groups: int = Field(default=1, gt=0, description="groups of heads that share B and C; divides the heads")
        d_conv: int = Field(default=4, gt=0, description="tokens that the causal convolution sees, the present one included")
        impl: Impl = Field(default="auto", description="implementation of the recurrence")

        @property
        def n_heads(self) -> int:
            return self.d_inner // self.head_dim

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if self.d_inner % self.head_dim:
                raise RecipeError(f"mamba2.d_inner must be a multiple of head_dim, but got {self.d_inner=} and {self.head_dim=}")
            if self.n_heads % self.n_groups:
                raise RecipeError(f"mamba2.n_groups must divide the {self.n_heads} heads, but got {self.n_groups=}")

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        c, d = config, layer.d_model
        channels = c.d_inner + 2 * c.n_groups * c.d_state
        self.in_proj = nn.Linear(d, channels, bias=False)
        self.z_proj = nn.Linear(d, c.d_inner, bias=False)
        self.dt_proj = nn.Linear(d, c.n_heads, bias=False)
        self.conv = nn.Conv1d(channels, channels, c.d_conv, groups=channels)
        self.norm = nn.RMSNorm(c.d_inner, eps=layer.model.norm_eps)
        self.o_proj = nn.Linear(c.d_inner, d, bias=False)
        self.A_log = nn.Parameter(torch.empty(c.n_heads))
        self.dt_bias = nn.Parameter(torch.empty(c.n_heads))
        self.D = nn.Parameter(torch.empty(c.n_heads))

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return self._run(x_BTD, None, ctx)[0]

    def step(self, x_BTD: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        return self._run(x_BTD, state, ctx)

    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> State:
        c = self.config
        history = torch.zeros(batch, c.d_conv - 1, self.conv.in_channels, device=device, dtype=dtype)
        return history, torch.zeros(batch, c.n_heads, c.d_state, c.head_dim, device=device)

    def _run(self, x_BTD: Tensor, state: State | None, ctx: Context) -> tuple[Tensor, State]:
        c = self.config
        history, state_BHSV = state or (None, None)
        xbc, history = short_conv(self.in_proj(x_BTD), self.conv.weight.squeeze(1), history_BWD=history, starts_BT=ctx.starts_BT)
        assert self.conv.bias is not None
        x, write, read = F.silu(xbc + self.conv.bias.to(xbc.dtype)).split([c.d_inner, *[c.n_groups * c.d_state] * 2], dim=-1)
        x_BTHV = x.unflatten(-1, (c.n_heads, -1))
        write_BTHS, read_BTHS = (z.unflatten(-1, (c.n_groups, -1)).repeat_interleave(c.n_heads // c.n_groups, dim=2) for z in (write, read))
        step_BTH = timestep(self.dt_proj(x_BTD), self.dt_bias)
        ctx.measure("decay_rate", lambda: self.A_log.exp() * step_BTH)
        o_BTHV, state_BHSV = linear_attention(
            read_BTHS, write_BTHS, x_BTHV * step_BTH[..., None], -self.A_log.exp() * step_BTH,
            initial_state_BHKV=state_BHSV, starts_BT=ctx.starts_BT, impl=c.impl,
        )  # fmt: skip
        o = (o_BTHV + self.D[:, None] * x_BTHV).flatten(-2)
        gated = o * F.silu(self.z_proj(x_BTD).to(o.dtype))
        y_BTD: Tensor = self.o_proj(rms_norm(gated, self.norm.weight, self.layer.model.norm_eps).to(x_BTD.dtype))
        return y_BTD, (history, state_BHSV)

    # -- accounting and initialisation --------------------------------------------------------------------------------------------
    def mixing_flops(self, context: int) -> float:
        """The recurrence as written: per state number 1 to decay, 2 to write, 2 to read; 2·d_conv per channel of the convolution, 2 for D x, 1 for
        the time step on x."""
        c = self.config
        return 5.0 * c.d_inner * c.d_state + 2 * c.d_conv * self.conv.in_channels + 3 * c.d_inner

    def state_elems(self, context: int) -> int:
        c = self.config
        return c.d_inner * c.d_state + (c.d_conv - 1) * self.conv.in_channels

    def kernels(self, device: torch.device | str) -> dict[str, str]:
        return {"linear_attention": resolve_impl(self.config.impl, device), "short_conv": resolve_conv("auto", device)}

    def init_parameter(self, name: str, weight: Tensor, generator: torch.Generator) -> bool:
        if name == "A_log":
            init_rate(weight, 1.0, 16.0, generator)
        elif name == "dt_bias":
            init_dt_bias(weight, generator)
        elif name == "D":
            weight.fill_(1.0)
        else:
            return False
        return True
