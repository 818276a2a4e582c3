"""Kimi Delta Attention: Gated DeltaNet with a decay of its own for each key channel."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.ops.decay import init_dt_bias, init_rate, timestep
from hymo.ops.linear_attention import Impl, linear_attention, resolve_impl
from hymo.ops.norm import gated_rms_norm
from hymo.ops.short_conv import resolve_impl as resolve_conv
from hymo.ops.short_conv import short_conv

State = tuple[Tensor, Tensor]       # the convolution's last inputs (B, d_conv-1, 3·H·K) and the recurrent state (B, H, K, K), fp32


@register("mixer", "kda")
class Kda(Block):
    """S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t−1} + β_t k_t v_tᵀ,   o_t = S_tᵀ q_t / √K  (KDA, arXiv 2510.26692).

        q, k, v = SiLU(conv(W x)),  q and k L2-normalised      H heads, all K wide
        α = exp(−exp(A_log) softplus(W_f2 W_f1 x + dt_bias))   per key channel, through rank K;   β = σ(W_b x)
        y = W_o (RMSNorm(o) ⊙ σ(W_g2 W_g1 x))

    The decay comes first and the delta acts on the decayed state; the two do not commute. x_BTD -> y_BTD. Gates and state are fp32; A starts
    uniform in (1, 16) per head, the time step log-uniform in (1e-3, 0.1). No position encoding.
    """

    class Config(BlockConfig):
        """Heads, width and convolution."""

        type: Literal["kda"] = "kda"
        n_heads: int = Field(default=7, gt=0, description="heads H")
        head_dim: int = Field(default=128, gt=0, description="width K of queries, keys and values, and the rank of the decay and output gates")
        d_conv: int = Field(default=4, gt=0, description="tokens that the causal convolution sees, the present one included")
        impl: Impl = Field(default="auto", description="implementation of the recurrence")

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        c, d, width = config, layer.d_model, config.n_heads * config.head_dim
        self.q_proj = nn.Linear(d, width, bias=False)
        self.k_proj = nn.Linear(d, width, bias=False)
        self.v_proj = nn.Linear(d, width, bias=False)
        self.conv = nn.Conv1d(3 * width, 3 * width, c.d_conv, groups=3 * width, bias=False)
        self.f_proj = nn.Sequential(nn.Linear(d, c.head_dim, bias=False), nn.Linear(c.head_dim, width, bias=False))
        self.g_proj = nn.Sequential(nn.Linear(d, c.head_dim, bias=False), nn.Linear(c.head_dim, width, bias=False))
        self.b_proj = nn.Linear(d, c.n_heads, bias=False)
        self.o_norm = nn.RMSNorm(c.head_dim, eps=layer.model.norm_eps)
        self.o_proj = nn.Linear(width, d, bias=False)
        self.A_log = nn.Parameter(torch.empty(c.n_heads))
        self.dt_bias = nn.Parameter(torch.empty(width))

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return self._run(x_BTD, None, ctx)[0]

    def step(self, x_BTD: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        return self._run(x_BTD, state, ctx)

    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> State:
        c = self.config
        history = torch.zeros(batch, c.d_conv - 1, self.conv.in_channels, device=device, dtype=dtype)
        return history, torch.zeros(batch, c.n_heads, c.head_dim, c.head_dim, device=device)

    def _run(self, x_BTD: Tensor, state: State | None, ctx: Context) -> tuple[Tensor, State]:
        c, heads = self.config, (self.config.n_heads, -1)
        history, state_BHKV = state or (None, None)
        qkv = torch.cat([self.q_proj(x_BTD), self.k_proj(x_BTD), self.v_proj(x_BTD)], dim=-1)
        taps = self.conv.weight.squeeze(1)
        qkv, history = short_conv(qkv, taps, history_BWD=history, starts_BT=ctx.starts_BT, activation="silu")
        q, k, v_BTHV = (z.unflatten(-1, heads) for z in qkv.chunk(3, dim=-1))
        q_BTHK, k_BTHK = F.normalize(q.float(), dim=-1) * c.head_dim**-0.5, F.normalize(k.float(), dim=-1)
        decay_BTHK = -self.A_log.exp()[:, None] * timestep(self.f_proj(x_BTD), self.dt_bias).unflatten(-1, heads)
        ctx.measure("decay_rate", lambda: -decay_BTHK.mean(dim=-1))
        beta_BTH = torch.sigmoid(self.b_proj(x_BTD).float())
        o_BTHV, state_BHKV = linear_attention(
            q_BTHK, k_BTHK, v_BTHV, decay_BTHK, beta_BTH, initial_state_BHKV=state_BHKV, starts_BT=ctx.starts_BT, impl=c.impl
        )
        gate = self.g_proj(x_BTD).unflatten(-1, heads)
        o_BTHV = gated_rms_norm(o_BTHV, gate, self.o_norm.weight, self.layer.model.norm_eps, activation=torch.sigmoid)
        y_BTD: Tensor = self.o_proj(o_BTHV.flatten(-2))
        return y_BTD, (history, state_BHKV)

    # -- accounting and initialisation --------------------------------------------------------------------------------------------
    def mixing_flops(self, context: int) -> float:
        """The recurrence as written: per state number 1 to decay, 2 to recall what the key holds, 2 to write, 2 to read; 2·d_conv per channel
        of the convolution."""
        c = self.config
        return 7.0 * c.n_heads * c.head_dim**2 + 2 * c.d_conv * self.conv.in_channels

    def state_elems(self, context: int) -> int:
        c = self.config
        return c.n_heads * c.head_dim**2 + (c.d_conv - 1) * self.conv.in_channels

    def kernels(self, device: torch.device | str) -> dict[str, str]:
        return {"linear_attention": resolve_impl(self.config.impl, device), "short_conv": resolve_conv("auto", device)}

    def init_parameter(self, name: str, weight: Tensor, generator: torch.Generator) -> bool:
        if name == "A_log":
            init_rate(weight, 1.0, 16.0, generator)
        elif name == "dt_bias":
            init_dt_bias(weight, generator)
        else:
            return False
        return True
