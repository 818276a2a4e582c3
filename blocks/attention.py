"""Softmax attention: multi-head, grouped-query or multi-query, with the options of current models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.errors import RecipeError
from hymo.ops.attention import Visibility, attention, visibility
from hymo.ops.norm import rms_norm
from hymo.ops.token_cache import append, with_room
from hymo.recipe.tree import Position
from hymo.registry import build

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig

State = tuple[Tensor, Tensor]       # keys (B, L, G, K), normed but not rotated, and values (B, L, G, K) of the tokens that are still seen


@register("mixer", "attention")
class Attention(Block):
    """o = softmax(q kᵀ / √K) v over the visible keys, y = W_o (o ⊙ σ(W_g x))  (arXiv 1706.03762; groups 2305.13245; output gate 2505.06708).

    n_kv_heads = n_heads is multi-head attention, 1 is multi-query attention. `window` w lets a token see itself and the w−1 before it.
    x_BTD -> y_BTD. With `qk_norm`, queries and keys pass an RMSNorm of width K before rotation (arXiv 2302.05442).
    """

    class Config(BlockConfig):
        """Heads, width, window and gates."""

        type: Literal["attention"] = "attention"
        n_heads: int = Field(default=14, gt=0, description="query heads H")
        n_kv_heads: int = Field(default=2, gt=0, description="key/value heads G; divides n_heads")
        head_dim: int = Field(default=64, gt=0, description="width K of a head")
        rope_dim: int | None = Field(default=None, ge=0, description="part of head_dim that carries positions, even; null: all of it")
        qk_norm: bool = Field(default=True, description="RMSNorm on queries and keys")
        window: int | None = Field(default=None, gt=0, description="tokens that a query sees, itself included; null: all of its document")
        output_gate: bool = Field(default=False, description="multiply each head's output by a sigmoid of the input")
        rope: Position | None = Field(default=None, description="position encoding; null: the model's")

        @property
        def rotated(self) -> int:
            return self.head_dim if self.rope_dim is None else self.rope_dim

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if self.n_heads % self.n_kv_heads:
                raise RecipeError(f"attention.n_kv_heads must divide n_heads, but got {self.n_kv_heads=} and {self.n_heads=}; change one of them")
            if self.rotated > self.head_dim or (self.rotated % 2 and (self.rope or model.rope).type != "none"):
                raise RecipeError(f"attention.rope_dim must be even and at most head_dim, but got {self.rotated} and {self.head_dim=}")
            if self.rope is not None:
                self.rope.check(layer, model)

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        c, d, eps = config, layer.d_model, layer.model.norm_eps
        self.wq = nn.Linear(d, c.n_heads * c.head_dim, bias=False)
        self.wk = nn.Linear(d, c.n_kv_heads * c.head_dim, bias=False)
        self.wv = nn.Linear(d, c.n_kv_heads * c.head_dim, bias=False)
        self.wo = nn.Linear(c.n_heads * c.head_dim, d, bias=False)
        self.wg = nn.Linear(d, c.n_heads * c.head_dim, bias=False) if c.output_gate else None
        self.q_norm = nn.RMSNorm(c.head_dim, eps=eps) if c.qk_norm else None
        self.k_norm = nn.RMSNorm(c.head_dim, eps=eps) if c.qk_norm else None
        self.rope = build("position", c.rope or layer.model.rope, layer)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return self._attend(x_BTD, *self._keys_values(x_BTD), ctx)

    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> State:
        shape = (batch, 0, self.config.n_kv_heads, self.config.head_dim)
        return torch.empty(shape, device=device, dtype=dtype), torch.empty(shape, device=device, dtype=dtype)

    def step(self, x_BTD: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """Keys are kept un-rotated: their positions are in the context. With a window, those that no later token sees are dropped."""
        keys, values = (append(old, new, ctx.slot) for old, new in zip(state, self._keys_values(x_BTD), strict=True))
        drop = max(0, keys.shape[1] - self._kept(keys.shape[1]))
        kept = (keys[:, drop:].clone(), values[:, drop:].clone()) if drop else (keys, values)
        return self._attend(x_BTD, keys, values, ctx), kept

    def reserve(self, state: State, tokens: int) -> State | None:
        """A window that drops as it goes has no room to reserve."""
        if self.config.window is not None:
            return None
        keys, values = (with_room(part, tokens) for part in state)
        return keys, values

    def _kept(self, context: int) -> int:
        """Tokens that the next one still sees."""
        return context if self.config.window is None else min(context, self.config.window - 1)

    def _keys_values(self, x_BTD: Tensor) -> State:
        heads = (self.config.n_kv_heads, -1)
        return _normed(self.wk(x_BTD).unflatten(-1, heads), self.k_norm), self.wv(x_BTD).unflatten(-1, heads)

    def _rotate(self, x_BTHK: Tensor, ctx: Context) -> Tensor:
        if not self.config.rotated:
            return x_BTHK
        rotary, rest = x_BTHK.split([self.config.rotated, self.config.head_dim - self.config.rotated], dim=-1)
        return torch.cat([self.rope(rotary, ctx), rest], dim=-1)

    def _attend(self, x_BTD: Tensor, k_BLGK: Tensor, v_BLGV: Tensor, ctx: Context) -> Tensor:
        key_ctx, window = _latest(ctx, k_BLGK.shape[1]), self.config.window
        q_BTHK = self._rotate(_normed(self.wq(x_BTD).unflatten(-1, (self.config.n_heads, -1)), self.q_norm), ctx)
        k_BLGK = self._rotate(k_BLGK, key_ctx)
        q, k, v = (x.to(v_BLGV.dtype).transpose(1, 2) for x in (q_BTHK, k_BLGK, v_BLGV))

        def visible() -> Visibility:
            return visibility(q.shape[2], k.shape[2], ctx.documents_BT, key_ctx.documents_BT, q.device, window)

        mask = ctx.once(("visibility", k.shape[2], window), visible)
        o_BTE = attention(q, k, v, mask, scale=self.config.head_dim**-0.5).transpose(1, 2).flatten(-2)
        if self.wg is not None:
            o_BTE = o_BTE * torch.sigmoid(self.wg(x_BTD))
        y_BTD: Tensor = self.wo(o_BTE)
        return y_BTD

    def mixing_flops(self, context: int) -> float:
        """Scores and weighted values, 2 FLOPs a product, over the visible half of the square (a band of it with `window`)."""
        w = min(self.config.window or context, context)
        seen = w - w * (w - 1) / (2 * context) if self.config.window else context / 2
        return 4.0 * self.config.n_heads * self.config.head_dim * seen

    def state_elems(self, context: int) -> int:
        return 2 * self.config.n_kv_heads * self.config.head_dim * self._kept(context)


def _normed(x_BTHK: Tensor, norm: nn.RMSNorm | None) -> Tensor:
    return x_BTHK if norm is None else rms_norm(x_BTHK, norm.weight, norm.eps or 0.0)


def _latest(ctx: Context, length: int) -> Context:
    """Context of the last `length` tokens, this pass's included."""
    whole = ctx.whole
    if length == whole.positions_BT.shape[1]:
        return whole

    def cut() -> Context:
        return Context(whole.positions_BT[:, -length:], None if whole.documents_BT is None else whole.documents_BT[:, -length:])

    return ctx.once(("latest", length), cut)
