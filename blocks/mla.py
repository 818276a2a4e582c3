"""Multi-head latent attention with grouped keys and values."""

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

State = tuple[Tensor, Tensor]       # the latents (B, L, R) and the shared key parts (B, L, P) of the tokens so far


@register("mixer", "mla")
class Mla(Block):
    """o = softmax(q kᵀ / √K) v with keys and values expanded from one latent a token  (MLA, arXiv 2405.04434; groups, arXiv 2305.13245).

        q = s_q ⊙ W_qb RMSNorm(W_qa x)                    H heads of width K, the first P of them rotated
        [z | p] = W_kva x,   c = RMSNorm(z)               latent c of width R; p of width P, shared by the G groups
        [n | v] = W_kvb c,   k = [rope(s_k ⊙ p) | n]      per group; s_k differs between groups
        y = W_o o

    x_BTD -> y_BTD. Query head i reads group i // (H/G). s_q and s_k are learned and start at 1.

    Decoding keeps c and p, R + P numbers a token: p before scale and rotation, which do not commute and differ between groups. A single token
    is absorbed: W_kvb's key half goes into the query and its value half into the output, so that attention runs over latents,
    n·q = c·(W_kᵀ q) and Σ a v = W_v Σ a c, and no key or value is ever expanded.
    """

    class Config(BlockConfig):
        """Widths, heads and position encoding."""

        type: Literal["mla"] = "mla"
        n_heads: int = Field(default=16, gt=0, description="query heads H")
        n_kv_groups: int = Field(default=4, gt=0, description="key/value groups G; divides n_heads")
        head_dim: int = Field(default=128, gt=0, description="width K of queries and keys; the softmax scale is head_dim^-0.5")
        rope_dim: int = Field(default=32, ge=0, description="part P of head_dim that carries positions: 0 … head_dim, even")
        v_head_dim: int = Field(default=128, gt=0, description="width of values")
        q_lora_rank: int = Field(default=224, gt=0, description="rank of the query projection")
        kv_lora_rank: int = Field(default=128, gt=0, description="width R of the latent that keys and values are expanded from")
        qk_scale: bool = Field(default=True, description="learned scales on the queries and the shared key part")
        rope: Position | None = Field(default=None, description="position encoding; null: the model's")

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if self.n_heads % self.n_kv_groups:
                fits = ", ".join(str(g) for g in range(1, min(self.n_heads, 256) + 1) if self.n_heads % g == 0)
                raise RecipeError(
                    f"mla.n_kv_groups must divide n_heads, for each group serves equally many heads, but got {self.n_kv_groups=} "
                    f"and {self.n_heads=}; choose from {fits}"
                )
            if self.rope_dim > self.head_dim or self.rope_dim % 2:
                raise RecipeError(f"mla.rope_dim must be even and at most head_dim, but got {self.rope_dim=} and {self.head_dim=}")
            (self.rope or model.rope).check(layer, model)

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        c, d, self.eps = config, layer.d_model, layer.model.norm_eps
        self.nope_dim = c.head_dim - c.rope_dim
        self.scale = c.head_dim**-0.5
        self.wq_a = nn.Linear(d, c.q_lora_rank, bias=False)
        self.q_norm = nn.RMSNorm(c.q_lora_rank, eps=self.eps)
        self.wq_b = nn.Linear(c.q_lora_rank, c.n_heads * c.head_dim, bias=False)
        self.wkv_a = nn.Linear(d, c.kv_lora_rank + c.rope_dim, bias=False)
        self.kv_norm = nn.RMSNorm(c.kv_lora_rank, eps=self.eps)
        self.wkv_b = nn.Linear(c.kv_lora_rank, c.n_kv_groups * (self.nope_dim + c.v_head_dim), bias=False)
        self.wo = nn.Linear(c.n_heads * c.v_head_dim, d, bias=False)
        self.q_norm_qk = nn.Parameter(torch.empty(c.n_heads * c.head_dim)) if c.qk_scale else None
        self.k_norm_qk = nn.Parameter(torch.empty(c.n_kv_groups, c.rope_dim)) if c.qk_scale and c.rope_dim else None
        self.rope = build("position", c.rope or layer.model.rope, layer)

    def prepare(self, ctx: Context) -> None:
        self._visible(ctx)
        if self.config.rope_dim:
            self.rope(ctx.no_heads(self.config.rope_dim), ctx)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        latent_BTR, shared_BTP = self._compress(x_BTD)
        return self._expanded(*self._queries(x_BTD, ctx), latent_BTR, shared_BTP, ctx)

    # -- projections --------------------------------------------------------------------------------------------------------------
    def _queries(self, x_BTD: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Rotated part (B, T, H, P) and the rest (B, T, H, K-P)."""
        q = self.wq_b(rms_norm(self.wq_a(x_BTD), self.q_norm.weight, self.eps))
        if self.q_norm_qk is not None:
            q = q * self.q_norm_qk
        rotary, rest = torch.split(torch.unflatten(q, -1, (self.config.n_heads, -1)), [self.config.rope_dim, self.nope_dim], dim=-1)
        return self.rope(rotary, ctx) if self.config.rope_dim else rotary, rest

    def _compress(self, x_BTD: Tensor) -> State:
        """What a token leaves behind: its normed latent, and the shared key part before scale and rotation."""
        latent, shared = torch.split(self.wkv_a(x_BTD), [self.config.kv_lora_rank, self.config.rope_dim], dim=-1)
        return rms_norm(latent, self.kv_norm.weight, self.eps), shared

    def _rotary_keys(self, shared_BLP: Tensor, ctx: Context) -> Tensor:
        """The shared key part, scaled for each group and rotated at the keys' own positions; (B, L, G, P)."""
        keys = shared_BLP.unsqueeze(2).expand(-1, -1, self.config.n_kv_groups, -1)
        if self.k_norm_qk is not None:
            keys = keys * self.k_norm_qk
        return self.rope(keys, ctx.whole) if self.config.rope_dim else keys

    def _visible(self, ctx: Context) -> Visibility:
        whole = ctx.whole

        def make() -> Visibility:
            queries, keys = ctx.positions_BT.shape[1], whole.positions_BT.shape[1]
            return visibility(queries, keys, ctx.documents_BT, whole.documents_BT, ctx.positions_BT.device)

        return ctx.once("visibility", make)

    # -- the two forms ------------------------------------------------------------------------------------------------------------
    def _expanded(self, q_rotary: Tensor, q_rest: Tensor, latent_BLR: Tensor, shared_BLP: Tensor, ctx: Context) -> Tensor:
        """Attention over expanded keys and values."""
        expanded = torch.unflatten(self.wkv_b(latent_BLR), -1, (self.config.n_kv_groups, -1))
        k_rest, v_BLGV = torch.split(expanded, [self.nope_dim, self.config.v_head_dim], dim=-1)
        q_BTHK = torch.cat([q_rotary, q_rest], dim=-1)
        k_BLGK = torch.cat([self._rotary_keys(shared_BLP, ctx).to(k_rest.dtype), k_rest], dim=-1)
        o_BHTV = attention(
            q_BTHK.transpose(1, 2).to(v_BLGV.dtype), k_BLGK.transpose(1, 2), v_BLGV.transpose(1, 2), self._visible(ctx), scale=self.scale
        )
        y_BTD: Tensor = self.wo(o_BHTV.transpose(1, 2).flatten(-2))
        return y_BTD

    def _absorbed(self, q_rotary: Tensor, q_rest: Tensor, latent_BLR: Tensor, shared_BLP: Tensor, ctx: Context) -> Tensor:
        """The same for one query a row, over latents. Heads are split as (G groups, h heads each)."""
        groups = (self.config.n_kv_groups, -1)
        w_key, w_value = torch.split(torch.unflatten(self.wkv_b.weight, 0, groups), [self.nope_dim, self.config.v_head_dim], dim=1)
        q_latent = torch.einsum("btghn,gnr->bghtr", torch.unflatten(q_rest, 2, groups), w_key)
        scores = torch.einsum("bghtr,blr->bghtl", q_latent, latent_BLR.to(q_latent.dtype))
        scores = scores + self._rotary_scores(torch.unflatten(q_rotary, 2, groups), shared_BLP, ctx)
        visible = self._visible(ctx)
        if isinstance(visible, Tensor):     # a single query needs no block mask
            scores = scores.masked_fill(~visible.unsqueeze(1), float("-inf"))
        weights = torch.softmax(scores.to(torch.promote_types(scores.dtype, torch.float32)) * self.scale, dim=-1)
        mean_latent = torch.einsum("bghtl,blr->bghtr", weights.to(latent_BLR.dtype), latent_BLR)
        o = torch.einsum("bghtr,gvr->btghv", mean_latent, w_value)
        y_BTD: Tensor = self.wo(o.flatten(2))
        return y_BTD

    def _rotary_scores(self, q_BTGhP: Tensor, shared_BLP: Tensor, ctx: Context) -> Tensor:
        """q · rope(s ⊙ p) of every query and key, (B, G, h, T, L).

        Where the encoding turns pairs by φ, it is (s ⊙ q)·(cos φ ⊙ p) + (s ⊙ q⊥)·(sin φ ⊙ p) with q⊥ = (q_2k+1, −q_2k): the scale goes to the
        queries, and what is computed of a key serves all groups.
        """
        table = self.rope.rotation(self.config.rope_dim, ctx.whole) if self.config.rope_dim else None
        if table is None:
            keys_BLGP = self._rotary_keys(shared_BLP, ctx)
            return torch.einsum("btghp,blgp->bghtl", q_BTGhP.to(keys_BLGP.dtype), keys_BLGP)
        turned = torch.stack([q_BTGhP[..., 1::2], -q_BTGhP[..., 0::2]], dim=-1).flatten(-2)
        queries = torch.stack([q_BTGhP, turned], dim=-2)
        if self.k_norm_qk is not None:
            queries = queries * self.k_norm_qk[:, None, None]
        keys = torch.cat([shared_BLP * part.squeeze(-2).repeat_interleave(2, dim=-1) for part in table], dim=-1).to(shared_BLP.dtype)
        return torch.einsum("btghq,blq->bghtl", queries.flatten(-2).to(keys.dtype), keys)

    # -- decoding -----------------------------------------------------------------------------------------------------------------
    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> State:
        c = self.config
        return torch.empty(batch, 0, c.kv_lora_rank, device=device, dtype=dtype), torch.empty(batch, 0, c.rope_dim, device=device, dtype=dtype)

    def step(self, x_BTD: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """A prompt is expanded, once for all its queries; a single token is absorbed."""
        latent, shared = (append(old, new, ctx.slot) for old, new in zip(state, self._compress(x_BTD), strict=True))
        attend = self._absorbed if x_BTD.shape[1] == 1 else self._expanded
        return attend(*self._queries(x_BTD, ctx), latent, shared, ctx), (latent, shared)

    def reserve(self, state: State, tokens: int) -> State:
        latent, shared = (with_room(part, tokens) for part in state)
        return latent, shared

    # -- accounting and initialisation --------------------------------------------------------------------------------------------
    def mixing_flops(self, context: int) -> float:
        """Scores and weighted values, 2 FLOPs a product, over half of the square."""
        return self.config.n_heads * (self.config.head_dim + self.config.v_head_dim) * float(context)

    def state_elems(self, context: int) -> int:
        return (self.config.kv_lora_rank + self.config.rope_dim) * context

    def init_parameter(self, name: str, weight: Tensor, generator: torch.Generator) -> bool:
        if name not in ("q_norm_qk", "k_norm_qk"):
            return False
        weight.fill_(1.0)
        return True
