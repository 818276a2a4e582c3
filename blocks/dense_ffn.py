"""The SwiGLU feed-forward network."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.ops.swiglu import resolve_impl, swiglu


@register("ffn", "dense_ffn")
class DenseFfn(Block):
    """y = W_down (SiLU(W_gate x) * W_up x)  (SwiGLU, arXiv 2002.05202), without biases.

    x_BTD -> y_BTD. W_gate and W_up are one matrix of 2*inter_dim rows, gate first: x is read once.
    """

    class Config(BlockConfig):
        """The network's width."""

        type: Literal["dense_ffn"] = "dense_ffn"
        inter_dim: int = Field(default=2304, gt=0, description="hidden width of the network")

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        self.w_gate_up = nn.Linear(layer.d_model, 2 * config.inter_dim, bias=False)
        self.w_down = nn.Linear(config.inter_dim, layer.d_model, bias=False)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        y_BTD: Tensor = self.w_down(swiglu(self.w_gate_up(x_BTD)))
        return y_BTD

    def mixing_flops(self, context: int) -> float:
        return 0.0

    def state_elems(self, context: int) -> int:
        return 0

    def kernels(self, device: torch.device | str) -> dict[str, str]:
        return {"swiglu": resolve_impl("auto", device)}
