"""The stack: embedding, pre-norm residual layers, head. The only owner of norms and residuals.

    x_0 = E[tokens]
    x  <- x + mixer(RMSNorm(x))             every layer
    x  <- x + ffn(RMSNorm(x))               layers that have an FFN
    h   = RMSNorm(x),   logits = c tanh(W h / c),   W = E when the embeddings are tied

It knows blocks through their contract (hymo/block.py), none by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hymo.block import Block, BlockConfig, Context, LayerInfo
from hymo.init import initialise
from hymo.ops.linear_cross_entropy import IGNORED, linear_cross_entropy
from hymo.recipe.stack import resolve_stack
from hymo.recipe.tree import ModelConfig, Recipe
from hymo.registry import build

if TYPE_CHECKING:
    from hymo.data import Batch


@dataclass
class Losses:
    """Losses of a batch as sums in nats, with the number of labels each sums over, so that micro-batches and ranks add up exactly.

    The training loss is main_sum/main_count + sum_k w_k mtp_sums[k]/mtp_counts[k] + sum(aux), w = HyMo.mtp_weights.
    """

    main_sum: Tensor
    main_count: Tensor
    mtp_sums: list[Tensor] = field(default_factory=list)
    mtp_counts: list[Tensor] = field(default_factory=list)
    aux: dict[str, Tensor] = field(default_factory=dict)            # weighted, a mean over the batch's rows
    metrics: dict[str, Tensor] = field(default_factory=dict)        # detached
    measures: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)    # what blocks measured: sums over tokens, their number
    per_token_BT: Tensor | None = None                              # main loss of each position, 0 where there is no label; no gradient


@dataclass(frozen=True)
class DecodeState:
    """What decoding remembers: the state of every layer, and the context of the tokens read so far (with room for more, see HyMo.reserve)."""

    layers: tuple[Any, ...]
    past: Context | None = None
    slot: Tensor | None = None          # the place of the next token, when room is reserved


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + ffn(norm(x)) when there is an FFN. A block that owns its residual replaces x instead."""

    def __init__(self, info: LayerInfo, mixer: BlockConfig, ffn: BlockConfig) -> None:
        super().__init__()
        self.info = info
        self.mixer_norm = nn.RMSNorm(info.d_model, eps=info.model.norm_eps)
        self.mixer = build("mixer", mixer, info)
        self.ffn_norm: nn.RMSNorm | None = None
        self.ffn: Block | None = None
        if ffn.type != "none":
            self.ffn_norm = nn.RMSNorm(info.d_model, eps=info.model.norm_eps)
            self.ffn = build("ffn", ffn, info)

    def prepare(self, ctx: Context) -> None:
        """See Block.prepare."""
        self.mixer.prepare(ctx)
        if self.ffn is not None:
            self.ffn.prepare(ctx)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        x_BTD = _join(x_BTD, self.mixer(self.mixer_norm(x_BTD), ctx), self.mixer)
        return self._feed_forward(x_BTD, ctx)

    def step(self, x_BTD: Tensor, state: Any, ctx: Context) -> tuple[Tensor, Any]:
        y_BTD, state = self.mixer.step(self.mixer_norm(x_BTD), state, ctx)
        return self._feed_forward(_join(x_BTD, y_BTD, self.mixer), ctx), state

    def _feed_forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        if self.ffn is None or self.ffn_norm is None:
            return x_BTD
        return _join(x_BTD, self.ffn(self.ffn_norm(x_BTD), ctx), self.ffn)


def _join(x_BTD: Tensor, y_BTD: Tensor, block: Block) -> Tensor:
    return y_BTD.to(x_BTD.dtype) if block.owns_residual else x_BTD + y_BTD


class HyMo(nn.Module):
    """The language model a recipe describes. tokens_BT int64 -> logits (B, T, vocab_size) in fp32."""

    def __init__(self, config: ModelConfig, checkpoint_activations: bool = False) -> None:
        super().__init__()
        stack = resolve_stack(config)
        self.config = config
        self.checkpoint_activations = checkpoint_activations
        # Given its weight, nn.Embedding draws none: `normal_` on the meta device would import torch's compiler, seconds for nothing.
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, _weight=torch.empty(config.vocab_size, config.d_model))
        self.layers = nn.ModuleList(Layer(layer.info, layer.mixer, layer.ffn) for layer in stack)
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.head = None if config.tie_embeddings else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.mtp = build("head", config.mtp, LayerInfo(index=len(stack), symbol="mtp", ordinal=0, model=config))

    # -- names and parts ----------------------------------------------------------------------------------------------------------
    @property
    def logical_names(self) -> dict[str, str]:
        """Path of each parameter -> its logical name: layers.4.mixer.wq_a.weight -> M1.mixer.wq_a.weight, wherever layer M1 stands."""
        return {path: self._logical_name(path) for path, _ in self.named_parameters()}

    def _logical_name(self, path: str) -> str:
        if not path.startswith("layers."):
            return path
        _, index, inner = path.split(".", 2)
        return f"{self.layer(int(index)).info.name}.{inner}"

    def layer(self, index: int) -> Layer:
        """The layer at a position of the stack."""
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer

    def blocks(self) -> Iterator[Block]:
        """Every block of the model, nested ones included."""
        return (module for module in self.modules() if isinstance(module, Block))

    @property
    def mtp_weights(self) -> tuple[float, ...]:
        """Weight of each extra prediction head in the training loss."""
        return self.mtp.loss_weights

    @property
    def head_weight(self) -> Tensor:
        """Output matrix (vocab_size, D): the embedding's when tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    # -- forward ------------------------------------------------------------------------------------------------------------------
    def forward(self, tokens_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        return self.forward_with_hidden(tokens_BT, documents_BT)[0]

    def forward_with_hidden(self, tokens_BT: Tensor, documents_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits, and the final-normed hidden state (B, T, D) they are read from."""
        hidden_BTD = self._hidden(tokens_BT, Context.for_tokens(_shape(tokens_BT), tokens_BT.device, documents_BT))
        return self._logits(hidden_BTD), hidden_BTD

    def logits_at(self, tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
        """Logits (N, vocab_size) at the N places where `where_BT` is true, row by row; rows hold one document. Only these are computed."""
        hidden_BTD = self._hidden(tokens_BT, Context.for_tokens(_shape(tokens_BT), tokens_BT.device))
        return self._logits(hidden_BTD[where_BT])

    def loss(self, batch: Batch, *, per_token: bool = False, mtp: bool = True, measure: bool = False) -> Losses:
        """Cross-entropy of the main head, and of the extra heads unless `mtp` is False; with `measure`, what the blocks measure. See Losses."""
        tokens_BT = batch.inputs
        ctx = Context.for_tokens(_shape(tokens_BT), tokens_BT.device, batch.input_documents)
        ctx.measures = {} if measure else None
        hidden_BTD = self._hidden(tokens_BT, ctx)
        main_sum, main_count, per_token_BT = self._cross_entropy(hidden_BTD, batch.labels())
        losses = Losses(main_sum, main_count, aux=ctx.losses, metrics=ctx.metrics, measures=ctx.measures or {})
        if per_token:
            losses.per_token_BT = per_token_BT
        for k, ahead_BTD in enumerate(self.mtp(hidden_BTD, tokens_BT, self.embedding, ctx) if mtp else [], start=1):
            total, count, _ = self._cross_entropy(ahead_BTD, batch.labels(k))
            losses.mtp_sums.append(total)
            losses.mtp_counts.append(count)
        return losses

    def _hidden(self, tokens_BT: Tensor, ctx: Context) -> Tensor:
        x_BTD: Tensor = self.embedding(tokens_BT)
        for index in range(len(self.layers)):
            self.layer(index).prepare(ctx)
        for index in range(len(self.layers)):
            x_BTD = self._run(self.layer(index), x_BTD, ctx)
        hidden_BTD: Tensor = self.norm(x_BTD)
        return hidden_BTD

    def _run(self, layer: Layer, x_BTD: Tensor, ctx: Context) -> Tensor:
        """The layer's output. What it reports is kept under its name; every layer starts from an empty report, so that to the compiler all layers
        of a kind are one."""
        own = replace(ctx, losses={}, metrics={}, measures=None if ctx.measures is None else {})
        y_BTD: Tensor = self._recomputed(layer, x_BTD, own) if self.checkpoint_activations and torch.is_grad_enabled() else layer(x_BTD, own)
        ctx.losses.update({f"{name}/{layer.info.name}": value for name, value in own.losses.items()})
        ctx.metrics.update({f"{name}/{layer.info.name}": value for name, value in own.metrics.items()})
        if ctx.measures is not None and own.measures is not None:
            ctx.measures.update({f"{name}/{layer.info.name}": value for name, value in own.measures.items()})
        return y_BTD

    def _recomputed(self, layer: Layer, x_BTD: Tensor, own: Context) -> Tensor:
        """The layer's output, with its activations computed again in the backward pass. What the second pass reports goes nowhere."""
        first = True

        def run(x_BTD: Tensor) -> Tensor:
            nonlocal first
            here = own if first else replace(own, losses={}, metrics={}, recomputing=True)
            first = False
            y_BTD: Tensor = layer(x_BTD, here)
            return y_BTD

        y_BTD: Tensor = checkpoint(run, x_BTD, use_reentrant=False)
        return y_BTD

    def _logits(self, hidden_BTD: Tensor) -> Tensor:
        logits = F.linear(hidden_BTD, self.head_weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        cap = self.config.softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    def _cross_entropy(self, hidden_BTD: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, per_token_N = linear_cross_entropy(hidden_BTD.flatten(0, 1), self.head_weight, labels_BT.flatten(), softcap=self.config.softcap)
        return total, (labels_BT != IGNORED).sum(), per_token_N.view(labels_BT.shape)

    # -- training -----------------------------------------------------------------------------------------------------------------
    def after_optimizer_step(self, reduce_sum: Callable[[Tensor], Tensor] = lambda counts: counts) -> dict[str, Tensor]:
        """Run every block's hook, once per optimizer step; `reduce_sum` sums a tensor over all ranks. A metric that several blocks report is
        the mean over them."""
        reported: dict[str, list[Tensor]] = {}
        for block in self.blocks():
            for name, value in block.after_optimizer_step(reduce_sum).items():
                reported.setdefault(name, []).append(value)
        return {name: torch.stack(values).mean() for name, values in reported.items()}

    # -- decoding -----------------------------------------------------------------------------------------------------------------
    def initial_state(self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> DecodeState:
        """State before the first token, on the model's device and in its dtype unless told otherwise."""
        weight = self.embedding.weight
        where, kind = device or weight.device, dtype or weight.dtype
        return DecodeState(tuple(self.layer(i).mixer.initial_state(batch, where, kind) for i in range(len(self.layers))))

    @torch.no_grad()
    def step(
        self, tokens_BT: Tensor, state: DecodeState, documents_BT: Tensor | None = None, *, last_only: bool = False
    ) -> tuple[Tensor, DecodeState]:
        """Read T >= 1 more tokens: their logits (B, T, vocab_size), as `forward` on everything read so far gives them, and the new state.

        Prompts of different lengths are padded on the left and told apart by `documents_BT`, in every step: −1 is padding. `last_only` leaves
        all logits but the last token's out, (B, 1, vocab_size): a prompt needs no others.
        """
        if state.past is not None and state.slot is not None:
            ctx, past, slot = Context.at_slot(state.past, state.slot), state.past, state.slot + 1
        else:
            ctx, slot = Context.for_tokens(_shape(tokens_BT), tokens_BT.device, documents_BT, past=state.past), None
            past = ctx.whole
        x_BTD: Tensor = self.embedding(tokens_BT)
        states = []
        for index, before in enumerate(state.layers):
            x_BTD, after = self.layer(index).step(x_BTD, before, ctx)
            states.append(after)
        hidden_BTD = self.norm(x_BTD[:, -1:] if last_only else x_BTD)
        return self._logits(hidden_BTD), DecodeState(tuple(states), past, slot)

    def reserve(self, state: DecodeState, tokens: int) -> DecodeState | None:
        """The state with room for `tokens` more, which are then read one at a time: each step writes to the state that it is given, and no shape
        changes. None when a mixer cannot."""
        assert state.past is not None, "room is reserved once a prompt has been read"
        layers = [self.layer(index).mixer.reserve(before, tokens) for index, before in enumerate(state.layers)]
        if any(layer is None for layer in layers):
            return None
        read = torch.tensor([state.past.positions_BT.shape[1]], device=state.past.positions_BT.device)
        return DecodeState(tuple(layers), state.past.with_room(tokens), read)

    # -- initialisation -----------------------------------------------------------------------------------------------------------
    def materialise(self, device: torch.device | str, seed: int) -> None:
        """Allocate a model built on the meta device (sharded or not) and fill it, one parameter at a time, from (seed, logical name)."""
        self.to_empty(device=device)
        initialise(self, seed, self.logical_names, self._init_embedding)

    def _init_embedding(self, path: str, weight: Tensor, generator: torch.Generator) -> bool:
        """N(0, 1/d_model): with a tied head, logits of unit variance, so that the first loss is ln(vocab_size) + 1/2."""
        if path != "embedding.weight":
            return False
        weight.normal_(0, self.config.d_model**-0.5, generator=generator)
        return True


def build_hymo(recipe: Recipe, device: torch.device | str = "cpu", seed: int | None = None) -> HyMo:
    """The model of `recipe` with fp32 weights, initialised from `seed` (by default the recipe's). On device "meta" nothing is allocated.

    Raises RecipeError for a stack that cannot be read, RegistryError for an unknown block, KernelUnavailable for a kernel that cannot run.
    """
    with torch.device("meta"):
        model = HyMo(recipe.model, recipe.train.checkpoint_activations)
    if torch.device(device).type != "meta":
        model.materialise(device, recipe.run.seed if seed is None else seed)
    return model


def _shape(tokens_BT: Tensor) -> tuple[int, int]:
    rows, length = tokens_BT.shape
    return rows, length
