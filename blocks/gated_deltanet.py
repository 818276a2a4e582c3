"""Gated DeltaNet: a recurrence that erases before it writes."""

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
from hymo.ops.norm import gated_rms_norm, rms_norm
from hymo.ops.short_conv import resolve_impl as resolve_conv
from hymo.ops.short_conv import short_conv

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig

State = tuple[Tensor, Tensor]       # the convolution's last inputs (B, d_conv-1, channels) and the recurrent state (B, H, K, V), fp32


@register("mixer", "gated_deltanet")
class GatedDeltanet(Block):
    """S_t = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ,   o_t = S_tᵀ q_t / √K  (arXiv 2412.06464).

        q, k, v = SiLU(conv(W x)),  q and k L2-normalised      H heads, K wide keys, V = expand_v K wide values
        α = exp(−exp(A_log) softplus(W_a x + dt_bias)),   β = σ(W_b x), doubled with `negative_eigenvalues`
        y = W_o (RMSNorm(o) ⊙ SiLU(W_g x))

    x_BTD -> y_BTD. Gates and state are fp32; A starts uniform in (0, 16), the time step log-uniform in (1e-3, 0.1). No position encoding.
    """

    class Config(BlockConfig):
        """Heads, widths and gates."""

        type: Literal["gated_deltanet"] = "gated_deltanet"
        n_heads: int = Field(default=6, gt=0, description="heads H")
        head_dim: int = Field(default=112, gt=0, description="width K of queries and keys")
        expand_v: float = Field(default=2.0, gt=0, description="width of values over head_dim; their product is whole")
        d_conv: int = Field(default=4, gt=0, description="tokens that the causal convolution sees, the present one included")
        negative_eigenvalues: bool = Field(default=False, description="write strength up to 2 instead of 1, so that a key may be reflected")
        output_gate: bool = Field(default=True, description="gate the normed output by SiLU of the input")
        impl: Impl = Field(default="auto", description="implementation of the recurrence")

        @property
        def value_dim(self) -> int:
            return round(self.head_dim * self.expand_v)

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if self.head_dim * self.expand_v != self.value_dim:
                raise RecipeError(f"gated_deltanet.head_dim times expand_v must be whole, but got {self.head_dim=} and {self.expand_v=}")

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        c, d = config, layer.d_model
        keys, values = c.n_heads * c.head_dim, c.n_heads * c.value_dim
        self.q_proj = nn.Linear(d, keys, bias=False)
        self.k_proj = nn.Linear(d, keys, bias=False)
        self.v_proj = nn.Linear(d, values, bias=False)
        self.conv = nn.Conv1d(2 * keys + values, 2 * keys + values, c.d_conv, groups=2 * keys + values, bias=False)
        self.a_proj = nn.Linear(d, c.n_heads, bias=False)
        self.b_proj = nn.Linear(d, c.n_heads, bias=False)
        self.g_proj = nn.Linear(d, values, bias=False) if c.output_gate else None
        self.o_norm = nn.RMSNorm(c.value_dim, eps=layer.model.norm_eps)
        self.o_proj = nn.Linear(values, d, bias=False)
        self.A_log = nn.Parameter(torch.empty(c.n_heads))
        self.dt_bias = nn.Parameter(torch.empty(c.n_heads))

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return self._run(x_BTD, None, ctx)[0]

    def step(self, x_BTD: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        return self._run(x_BTD, state, ctx)

    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> State:
        c = self.config
        history = torch.zeros(batch, c.d_conv - 1, self.conv.in_channels, device=device, dtype=dtype)
        return history, torch.zeros(batch, c.n_heads, c.head_dim, c.value_dim, device=device)

    def _run(self, x_BTD: Tensor, state: State | None, ctx: Context) -> tuple[Tensor, State]:
        c, heads = self.config, (self.config.n_heads, -1)
        history, state_BHKV = state or (None, None)
        qkv = torch.cat([self.q_proj(x_BTD), self.k_proj(x_BTD), self.v_proj(x_BTD)], dim=-1)
        taps = self.conv.weight.squeeze(1)
        qkv, history = short_conv(qkv, taps, history_BWD=history, starts_BT=ctx.starts_BT, activation="silu")
        keys = c.n_heads * c.head_dim
        q, k, v_BTHV = (z.unflatten(-1, heads) for z in qkv.split([keys, keys, c.n_heads * c.value_dim], dim=-1))
        q_BTHK, k_BTHK = F.normalize(q.float(), dim=-1) * c.head_dim**-0.5, F.normalize(k.float(), dim=-1)
        decay_BTH = -self.A_log.exp() * timestep(self.a_proj(x_BTD), self.dt_bias)
        ctx.measure("decay_rate", lambda: -decay_BTH)
        beta_BTH = torch.sigmoid(self.b_proj(x_BTD).float()) * (2 if c.negative_eigenvalues else 1)
        o_BTHV, state_BHKV = linear_attention(
            q_BTHK, k_BTHK, v_BTHV, decay_BTH, beta_BTH, initial_state_BHKV=state_BHKV, starts_BT=ctx.starts_BT, impl=c.impl
        )
        if self.g_proj is None:
            o_BTHV = rms_norm(o_BTHV, self.o_norm.weight, self.layer.model.norm_eps)
        else:
            o_BTHV = gated_rms_norm(o_BTHV, self.g_proj(x_BTD).unflatten(-1, heads), self.o_norm.weight, self.layer.model.norm_eps)
        y_BTD: Tensor = self.o_proj(o_BTHV.flatten(-2))
        return y_BTD, (history, state_BHKV)

    # -- accounting and initialisation --------------------------------------------------------------------------------------------
    def mixing_flops(self, context: int) -> float:
        """The recurrence as written: per state number 1 to decay, 2 to recall what the key holds, 2 to write, 2 to read; 2·d_conv per channel
        of the convolution."""
        c = self.config
        return 7.0 * c.n_heads * c.head_dim * c.value_dim + 2 * c.d_conv * self.conv.in_channels

    def state_elems(self, context: int) -> int:
        c = self.config
        return c.n_heads * c.head_dim * c.value_dim + (c.d_conv - 1) * self.conv.in_channels

    def kernels(self, device: torch.device | str) -> dict[str, str]:
        return {"linear_attention": resolve_impl(self.config.impl, device), "short_conv": resolve_conv("auto", device)}

    def init_parameter(self, name: str, weight: Tensor, generator: torch.Generator) -> bool:
        if name == "A_log":
            init_rate(weight, 0.0, 16.0, generator)
        elif name == "dt_bias":
            init_dt_bias(weight, generator)
        else:
            return False
        return True
