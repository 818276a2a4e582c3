"""The gated recurrence of GDN layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.errors import RecipeError
from hymo.ops.gated_recurrence import gated_recurrence, resolve_impl
from hymo.ops.short_conv import resolve_impl as resolve_conv
from hymo.ops.short_conv import short_conv
from hymo.recipe.tree import Position
from hymo.registry import build

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig

State = tuple[Tensor, Tensor]       # the convolution's last inputs (B, d_conv-1, d_inner) and the recurrent state (B, H, S, D), fp32


@register("mixer", "gdn")
class Gdn(Block):
    """H_t = exp(g_t A) ⊙ H_{t−1} + b_t ⊗ v_t,   o_t = og_t (c_tᵀ H_t + D v_t),   y = W_out o + W_skip x.

        u = SiLU(conv(W_in x)),   v = u,   b = W_b u,   c = W_c u          per head: v of width D, b and c of width S
        g = σ(W_dt u + dt_bias),   og = mean over D of σ(W_g u),   A = −exp(A_log) < 0

    This is NOT the published Gated DeltaNet (arXiv 2412.06464): nothing is erased before it is written, there is no delta term. It is gated
    linear attention (arXiv 2312.06635) whose log decay g_t A has rank one: a gate per token and head, a rate per head and state row.

    x_BTD -> y_BTD. The state is fp32. Rotations apply to what is written and read (`rope_on`), never to the v in D v.
    """

    class Config(BlockConfig):
        """Widths, gates and implementation."""

        type: Literal["gdn"] = "gdn"
        d_inner: int = Field(default=1280, gt=0, description="width of u; a multiple of head_dim")
        head_dim: int = Field(default=32, gt=0, description="width D of a head's values; d_inner / head_dim heads")
        d_state: int = Field(default=32, gt=0, description="width S of a head's keys and queries: rows of its state")
        d_conv: int = Field(default=4, gt=0, description="tokens that the causal convolution sees, the present one included")
        decay_gate: Literal["dt", "g"] = Field(default="dt", description="projection that the decay gate comes from; the other gates the output")
        decay_init: Literal["multiscale", "timescale"] = Field(
            default="multiscale",
            description="multiscale: head h decays at rate h; timescale: half-lives log-uniform over 1 … max_seq_len tokens at a gate of 0.5",
        )
        rope_on: Literal["v", "bc", "vbc"] = Field(default="v", description="what positions rotate: values, keys and queries, or all three")
        residual: Literal["add", "skip_only"] = Field(default="add", description="skip_only: W_skip x takes the place of the identity residual")
        rope: Position | None = Field(default=None, description="position encoding; null: the model's; none is the off switch")
        impl: Literal["auto", "reference", "chunked", "triton"] = Field(default="auto", description="implementation of the recurrence")

        @property
        def n_heads(self) -> int:
            return self.d_inner // self.head_dim

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if self.d_inner % self.head_dim:
                raise RecipeError(f"gdn.d_inner must be a multiple of head_dim, but got {self.d_inner=} and {self.head_dim=}")
            if (self.rope or model.rope).type != "none":
                for letters, field in (("v", "head_dim"), ("bc", "d_state")):
                    width = getattr(self, field)
                    if letters in self.rope_on and width % 2:
                        raise RecipeError(f"gdn.{field} must be even where pairs of it are rotated, but got {field}={width} and {self.rope_on=}")
            (self.rope or model.rope).check(layer, model)

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        c, d, heads = config, layer.d_model, config.n_heads
        self.in_proj = nn.Linear(d, c.d_inner, bias=False)
        self.conv = nn.Conv1d(c.d_inner, c.d_inner, c.d_conv, groups=c.d_inner, bias=False)
        self.b_proj = nn.Linear(c.d_inner, heads * c.d_state, bias=False)
        self.c_proj = nn.Linear(c.d_inner, heads * c.d_state, bias=False)
        self.dt_proj = nn.Linear(c.d_inner, heads, bias=False)
        self.g_proj = nn.Linear(c.d_inner, c.d_inner, bias=False)
        self.out_proj = nn.Linear(c.d_inner, d, bias=False)
        self.skip_proj = nn.Linear(d, d, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads, c.d_state))
        self.D = nn.Parameter(torch.empty(heads))
        self.rope = build("position", c.rope or layer.model.rope, layer)

    def prepare(self, ctx: Context) -> None:
        for letters, width in (("v", self.config.head_dim), ("bc", self.config.d_state)):
            if letters in self.config.rope_on:
                self.rope(ctx.no_heads(width), ctx)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return self._run(x_BTD, None, ctx)[0]

    def step(self, x_BTD: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        return self._run(x_BTD, state, ctx)

    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> State:
        c = self.config
        history = torch.zeros(batch, c.d_conv - 1, c.d_inner, device=device, dtype=dtype)
        return history, torch.zeros(batch, c.n_heads, c.d_state, c.head_dim, device=device)

    def _run(self, x_BTD: Tensor, state: State | None, ctx: Context) -> tuple[Tensor, State]:
        history, state_BHSD = state or (None, None)
        starts_BT, heads = ctx.starts_BT, (self.config.n_heads, -1)
        taps = self.conv.weight.squeeze(1)
        u, past_inputs = short_conv(self.in_proj(x_BTD), taps, history_BWD=history, starts_BT=starts_BT, activation="silu")
        v_BTHD, b_BTHS, c_BTHS = (torch.unflatten(x, -1, heads) for x in (u, self.b_proj(u), self.c_proj(u)))
        decay_BTH, output_BTH = self._gates(u)
        ctx.measure("decay_rate", lambda: decay_BTH * self.A_log.exp().mean(dim=-1))
        written, rope_on = v_BTHD, self.config.rope_on
        if "v" in rope_on:
            written = self.rope(v_BTHD, ctx)
        if "bc" in rope_on:
            b_BTHS, c_BTHS = self.rope(b_BTHS, ctx), self.rope(c_BTHS, ctx)
        o_BTHD, state_BHSD = gated_recurrence(
            written, b_BTHS, c_BTHS, decay_BTH, -self.A_log.exp(), initial_state_BHSD=state_BHSD, starts_BT=starts_BT, impl=self.config.impl
        )
        # The gate inside the sum: D's gradient is then a product of numbers per head, in place of a sum over all of v.
        o_BTHD = output_BTH[..., None] * o_BTHD + (output_BTH * self.D)[..., None] * v_BTHD
        y_BTD: Tensor = self.out_proj(o_BTHD.flatten(-2)) + self.skip_proj(x_BTD)
        return y_BTD, (past_inputs, state_BHSD)

    def _gates(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Decay gate and output gate, both (B, T, H) in (0, 1). fp32: exp(g A) magnifies the rounding of g by up to |A|."""
        dt_BTH = torch.sigmoid(self.dt_proj(u).to(self.dt_bias.dtype) + self.dt_bias)
        g_BTH = torch.unflatten(torch.sigmoid(self.g_proj(u).to(self.dt_bias.dtype)), -1, (self.config.n_heads, -1)).mean(-1)
        return (dt_BTH, g_BTH) if self.config.decay_gate == "dt" else (g_BTH, dt_BTH)

    # -- accounting and initialisation --------------------------------------------------------------------------------------------
    def mixing_flops(self, context: int) -> float:
        """The recurrence as written, whatever computes it: per state number 1 to decay, 2 to write, 2 to read; per inner channel 2·d_conv for
        the convolution, 2 for D v, 1 for the output gate."""
        c = self.config
        return 5.0 * c.d_inner * c.d_state + (2 * c.d_conv + 3) * c.d_inner

    def state_elems(self, context: int) -> int:
        return self.config.d_inner * (self.config.d_state + self.config.d_conv - 1)

    def kernels(self, device: torch.device | str) -> dict[str, str]:
        return {"gated_recurrence": resolve_impl(self.config.impl, device), "short_conv": resolve_conv("auto", device)}

    @property
    def owns_residual(self) -> bool:
        return self.config.residual == "skip_only"

    def init_parameter(self, name: str, weight: Tensor, generator: torch.Generator) -> bool:
        if name == "A_log":
            self._init_rates(weight, generator)
        elif name == "D":
            weight.fill_(1.0)
        elif name == "dt_bias":
            weight.zero_()
        else:
            return False
        return True

    def _init_rates(self, A_log_HS: Tensor, generator: torch.Generator) -> None:
        """multiscale: A = −1 … −H by head. timescale: exp(A/2 · half-life) = 1/2, the half-lives log-uniform over 1 … max_seq_len tokens."""
        if self.config.decay_init == "multiscale":
            A_log_HS.copy_(torch.arange(1, len(A_log_HS) + 1).log()[:, None].expand_as(A_log_HS))
        else:
            log_half_life = torch.rand(A_log_HS.shape, generator=generator) * math.log(self.layer.model.max_seq_len)
            A_log_HS.copy_(math.log(2 * math.log(2)) - log_half_life)
