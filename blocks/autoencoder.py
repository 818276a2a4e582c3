"""Auto-encoder: everything before it reaches what comes after it through one vector."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.errors import RecipeError
from hymo.ops.norm import rms_norm

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig


@register("mixer", "autoencoder")
class Autoencoder(Block):
    """y_{n+j} = GELU(W_2 RMSNorm(GELU(W_1 RMSNorm(x_{n−1} + p_j)))),  j = 0, 1, …;   y_t = 0 for t < n   (decoder of MAD, arXiv 2403.17844)

    x_{n−1} is the hidden state of the document's n-th token and p_j = (sin j ω, cos j ω), ω_i = 10000^(−i/(D/2−1)): the layers below compress n
    tokens into one vector, and this one, which takes the identity path out, has nothing else to answer from. x_BTD -> y_BTD. The stack's norm comes
    before it, where the published decoder adds p to the raw stream. Task `compression` asks for it.
    """

    class Config(BlockConfig):
        """Tokens that are compressed."""

        type: Literal["autoencoder"] = "autoencoder"
        length: int = Field(default=32, gt=0, description="tokens n of a document that are compressed; the task's own length")

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if model.d_model % 2 or model.d_model < 4:
                raise RecipeError(f"autoencoder writes positions into pairs of d_model, which must be even and 4 at least, but got {model.d_model}")

    config: Config
    frequencies: Tensor

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        d, eps = layer.d_model, layer.model.norm_eps
        self.norm_1 = nn.RMSNorm(d, eps=eps)
        self.linear_1 = nn.Linear(d, d)
        self.norm_2 = nn.RMSNorm(d, eps=eps)
        self.linear_2 = nn.Linear(d, d)
        self.register_buffer("frequencies", torch.empty(d // 2), persistent=False)

    @property
    def owns_residual(self) -> bool:
        return True

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return self.step(x_BTD, self.initial_state(x_BTD.shape[0], x_BTD.device, x_BTD.dtype), ctx)[0]

    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """The vector of the document that is being read, in fp32, as the stream is."""
        return torch.zeros(batch, self.layer.d_model, device=device)

    def step(self, x_BTD: Tensor, state: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        length = x_BTD.shape[1]
        since_BT = ctx.positions_BT - (self.config.length - 1)                              # tokens since the vector was complete
        place_BT = torch.arange(length, device=x_BTD.device) - since_BT                     # where in this pass it is; negative: before it
        known = torch.cat([state[:, None].to(x_BTD.dtype), x_BTD], dim=1)
        code_BTD = known.gather(1, (place_BT + 1).clamp(0, length)[..., None].expand_as(x_BTD))
        y_BTD = self._decode(code_BTD + self._positions(since_BT - 1))
        newest_BD = code_BTD[:, -1].to(state.dtype, copy=True)                              # a view would keep the whole pass alive
        return torch.where(since_BT[..., None] > 0, y_BTD.to(x_BTD.dtype), 0), newest_BD

    def _decode(self, z_BTD: Tensor) -> Tensor:
        eps = self.layer.model.norm_eps
        h_BTD = F.gelu(self.linear_1(rms_norm(z_BTD, self.norm_1.weight, eps)))
        y_BTD: Tensor = F.gelu(self.linear_2(rms_norm(h_BTD, self.norm_2.weight, eps)))
        return y_BTD

    def _positions(self, index_BT: Tensor) -> Tensor:
        angles = index_BT[..., None].float() * self.frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def init_buffers(self) -> None:
        half = self.layer.d_model // 2
        index = torch.arange(half, device=self.frequencies.device)
        self.frequencies.copy_(torch.exp(index * (-math.log(10000) / (half - 1))))

    def mixing_flops(self, context: int) -> float:
        return 0.0      # a copy

    def state_elems(self, context: int) -> int:
        return self.layer.d_model
