"""Multi-token prediction: extra heads that read one, two, … tokens further ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.errors import RecipeError
from hymo.registry import BlockField, build, get

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig


@register("head", "mtp")
class Mtp(Block):
    """Head k = 1 … depth reads the hidden state of token t and token t+k, and is asked for token t+k+1 (arXiv 2404.19737, 2412.19437):

        swiglu      h^k_t = SwiGLU_k(h^{k-1}_t + E[token_{t+k}])
        deepseek    h^k_t = Layer_k(P_k [RMSNorm(h^{k-1}_t); RMSNorm(E[token_{t+k}])]),  Layer_k a pre-norm layer: mixer, then SwiGLU

    h^0 is the model's final-normed hidden state; with `chain: false` every head reads h^0. hidden_BTD, tokens_BT -> [h^1, …], h^k of length T-k:
    the last k tokens have no token_{t+k}. Embedding and output head are the model's own. The loss is sum_k weights[k] CE_k.
    """

    class Config(BlockConfig):
        """Depth, weights and form of the heads."""

        type: Literal["mtp"] = "mtp"
        depth: int = Field(default=2, ge=0, le=64, description="extra heads; 0 turns multi-token prediction off")
        weights: tuple[float, ...] = Field(default=(0.3, 0.1), description="weight of each head in the training loss, one per head")
        kind: Literal["swiglu", "deepseek"] = Field(default="swiglu", description="a SwiGLU network, or a projection and a transformer layer")
        chain: bool = Field(default=True, description="head k reads head k-1; false: every head reads the model's hidden state")
        inter_dim: int = Field(default=2304, gt=0, description="hidden width of each head's SwiGLU network")
        mixer: Annotated[SerializeAsAny[BlockConfig] | None, BlockField("mixer")] = Field(
            default=None, description="mixer of the deepseek kind; null: the first `mla` of model.layers"
        )

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if len(self.weights) != self.depth:
                raise RecipeError(f"mtp.weights must have one weight per head, but got {self.depth=} and {self.weights=}")
            if any(weight < 0 for weight in self.weights):
                raise RecipeError(f"mtp.weights must not be negative, but got {self.weights=}")
            if self.mixer is not None and self.kind != "deepseek":
                raise RecipeError(f"mtp.mixer is read by kind deepseek only, but got {self.kind=}; leave mixer out")
            if self.kind == "deepseek" and self.depth:
                self.layer_mixer(model).check(layer, model)

        def layer_mixer(self, model: ModelConfig) -> BlockConfig:
            """The mixer of a deepseek head."""
            found = self.mixer or next((kind.mixer for kind in model.layers.values() if kind.mixer.type == "mla"), None)
            if found is None:
                kinds = sorted({kind.mixer.type for kind in model.layers.values()})
                raise RecipeError(f"mtp.kind deepseek needs a layer whose mixer is mla, or mtp.mixer, but got mixers {', '.join(kinds)}")
            return found

    config: Config

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        make = _SwigluHead if config.kind == "swiglu" else _DeepseekHead
        self.heads = nn.ModuleList(make(config, layer) for _ in range(config.depth))

    def forward(self, hidden_BTD: Tensor, tokens_BT: Tensor, embed: Callable[[Tensor], Tensor], ctx: Context) -> list[Tensor]:
        previous, outputs = hidden_BTD, []
        for k, head in enumerate(self.heads, start=1):
            length = max(0, tokens_BT.shape[1] - k)
            read = previous if self.config.chain else hidden_BTD
            previous = head(read[:, :length], embed(tokens_BT[:, k:]), _shortened(ctx, length))
            outputs.append(previous)
        return outputs

    @property
    def loss_weights(self) -> tuple[float, ...]:
        return self.config.weights

    def mixing_flops(self, context: int) -> float:
        """Of one token, over all heads; a head sees k tokens fewer than `context`, which is not worth a term."""
        return sum((module.mixing_flops(context) for module in self.modules() if isinstance(module, Block) and module is not self), 0.0)

    def state_elems(self, context: int) -> int:
        return 0        # the heads are for training; decoding leaves them out


class _SwigluHead(nn.Module):
    def __init__(self, config: Mtp.Config, layer: LayerInfo) -> None:
        super().__init__()
        self.ffn = _swiglu(config, layer)

    def forward(self, hidden_BTD: Tensor, ahead_BTD: Tensor, ctx: Context) -> Tensor:
        y_BTD: Tensor = self.ffn(hidden_BTD + ahead_BTD, ctx)
        return y_BTD


class _DeepseekHead(nn.Module):
    """The head owns the norms and residuals of its layer, as the stack owns those of its own: in the embedding's type, whatever the autocast."""

    def __init__(self, config: Mtp.Config, layer: LayerInfo) -> None:
        super().__init__()
        d, eps = layer.d_model, layer.model.norm_eps
        self.hidden_norm = nn.RMSNorm(d, eps=eps)
        self.ahead_norm = nn.RMSNorm(d, eps=eps)
        self.projection = nn.Linear(2 * d, d, bias=False)
        self.mixer_norm = nn.RMSNorm(d, eps=eps)
        self.mixer = build("mixer", config.layer_mixer(layer.model), layer)
        self.ffn_norm = nn.RMSNorm(d, eps=eps)
        self.ffn = _swiglu(config, layer)

    def forward(self, hidden_BTD: Tensor, ahead_BTD: Tensor, ctx: Context) -> Tensor:
        both_BT2D = torch.cat([self.hidden_norm(hidden_BTD), self.ahead_norm(ahead_BTD)], dim=-1)
        x_BTD = self.projection(both_BT2D).to(ahead_BTD.dtype)
        mixed_BTD = self.mixer(self.mixer_norm(x_BTD), ctx)
        x_BTD = mixed_BTD.to(x_BTD.dtype) if self.mixer.owns_residual else x_BTD + mixed_BTD
        y_BTD: Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD), ctx)
        return y_BTD


def _swiglu(config: Mtp.Config, layer: LayerInfo) -> Block:
    return build("ffn", get("ffn", "dense_ffn").Config.model_validate({"type": "dense_ffn", "inter_dim": config.inter_dim}), layer)


def _shortened(ctx: Context, length: int) -> Context:
    """The context of the first `length` tokens; losses and metrics go on to the whole pass's, scratch does not (its shapes differ)."""
    documents_BT = None if ctx.documents_BT is None else ctx.documents_BT[:, :length]
    return replace(ctx, positions_BT=ctx.positions_BT[:, :length], documents_BT=documents_BT, cache={})
