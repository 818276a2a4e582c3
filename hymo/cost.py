"""What a recipe costs: parameters, FLOPs, decoding state, memory. The only owner of the factors 2 and 3.

    forward FLOPs per token  = 2 * (weights of Linear products, routed ones times their active share) + the blocks' own mixing_flops
    training FLOPs per token = 3 * forward  (forward once, backward twice: 6 FLOPs per weight)

The output head is one Linear product, tied or not, and one more for each extra prediction head; looking tokens up in the embedding is none.
Attention is counted as causal: half of a square. `flops_per_token_train_square` counts the whole square, as many published figures do.
Norms, activations and rotations count nowhere. Everything comes from a model on the meta device: nothing is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from hymo.block import Block
from hymo.errors import NotOffered
from hymo.init import enclosing
from hymo.model import HyMo, build_hymo
from hymo.ops.grouped_linear import GroupedLinear
from hymo.ops.linear_cross_entropy.chunked import CHUNK_NUMBERS
from hymo.recipe import Recipe

_PER_MULTIPLY_ADD = 2
_TRAIN_PER_FORWARD = 3
_FP32 = 4
_MARGIN = 1.15
_COMPILED = 0.65        # of what layers keep uncompiled: 5.3 GiB a row of v1.0 at T=4096, measured on an H200, for an estimate of 8.5


@dataclass(frozen=True)
class Component:
    """One row of the parameter table."""

    name: str                           # a block's name, or the part of the model
    layers: int                         # layers (or prediction heads) it sums over
    active: int                         # parameters that one token uses
    stored: int
    flops_per_token_forward: float


@dataclass(frozen=True)
class LayerCost:
    """One layer of the stack, its norms included."""

    index: int
    name: str                           # logical name: M0
    mixer: str
    ffn: str
    active: int
    stored: int
    flops_per_token_forward: float
    cache_elems: int                    # numbers kept per sequence that grow with the context, at `context` tokens
    state_elems: int                    # numbers kept per sequence at any context
    cache_bytes: int                    # both in bytes, see Cost
    state_bytes: int


@dataclass(frozen=True)
class Cost:
    """What the model of a recipe costs on sequences of `context` tokens."""

    active: int
    stored: int
    components: list[Component]
    layers: list[LayerCost]
    context: int
    flops_per_token_forward: float      # attention causal: half of a square
    flops_per_token_train: float        # attention causal: half of a square
    flops_per_token_train_square: float
    kv_bytes: int                       # what decoding keeps of one sequence that grows with the context: key-value caches, in the compute type
    state_bytes: int                    # and what does not: recurrent states in fp32, a convolution's last inputs in the compute type


@dataclass(frozen=True)
class _Entry:
    """Something to be summed: a parameter, or a block's mixing."""

    row: str
    layer: int | None                   # position in the stack, or None
    stored: int = 0
    active: float = 0
    flops: float = 0


def count(recipe: Recipe) -> Cost:
    """The cost of `recipe` at its train.seq_len; decoding computes in bf16 unless train.dtype says fp32."""
    dtype = torch.float32 if recipe.train.dtype == "fp32" else torch.bfloat16
    return count_model(build_hymo(recipe, device="meta"), recipe.train.seq_len, dtype)


def count_model(model: HyMo, context: int, dtype: torch.dtype = torch.bfloat16) -> Cost:
    """The cost of a model, whatever device it is on, reading sequences of `context` tokens, and decoding in `dtype`."""
    entries = [*_parameters(model), *_mixing(model, context), *_heads(model)]
    rows = list(dict.fromkeys(entry.row for entry in entries if entry.stored or entry.flops))
    layers = [_layer_cost(model, index, entries, context, dtype) for index in range(len(model.layers))]
    forward = sum(entry.flops for entry in entries)
    # Causal attention is linear in the context, so the whole square is what twice the context would do causally.
    square = forward + sum(entry.flops for entry in _mixing(model, 2 * context)) - sum(entry.flops for entry in _mixing(model, context))
    return Cost(
        active=round(sum(entry.active for entry in entries)),
        stored=sum(entry.stored for entry in entries),
        components=[_component(model, row, [entry for entry in entries if entry.row == row]) for row in rows],
        layers=layers,
        context=context,
        flops_per_token_forward=forward,
        flops_per_token_train=_TRAIN_PER_FORWARD * forward,
        flops_per_token_train_square=_TRAIN_PER_FORWARD * square,
        kv_bytes=sum(layer.cache_bytes for layer in layers),
        state_bytes=sum(layer.state_bytes for layer in layers),
    )


def linear_flops(block: Block) -> float:
    """Forward FLOPs per token of the Linear products of a block, routed ones times their active share."""
    products = (entry for path, _ in block.named_parameters() for entry in [_parameter(block, path, block.name, None)])
    return sum(entry.flops for entry in products)


def _parameters(model: HyMo) -> Iterator[_Entry]:
    for path, _ in model.named_parameters():
        parts = path.split(".")
        if parts[0] == "layers":
            layer = model.layer(int(parts[1]))
            block = {"mixer": layer.mixer, "ffn": layer.ffn}.get(parts[2])      # None: a norm of the stack's
            row = (block and block.component(".".join(parts[3:]))) or layer.mixer.name
            yield _parameter(model, path, row, layer.info.index)
        elif parts[0] == "mtp":
            yield _parameter(model, path, model.mtp.component(".".join(parts[1:])) or model.mtp.name, None)
        else:
            yield _parameter(model, path, _own_rows(model)[parts[0]], None)


def _own_rows(model: HyMo) -> dict[str, str]:
    """Rows of what belongs to the stack itself."""
    return {"embedding": "embedding" if model.head is not None else "embedding (tied with head)", "head": "head", "norm": "final norm"}


def _parameter(root: nn.Module, path: str, row: str, layer: int | None) -> _Entry:
    owner_path, _, leaf = path.rpartition(".")
    owner = root.get_submodule(owner_path)
    stored = root.get_parameter(path).numel()
    active = stored * math.prod(block.active_fraction(inner) for block, inner in enclosing(root, path))
    multiplies = leaf == "weight" and isinstance(owner, (nn.Linear, GroupedLinear))
    return _Entry(row, layer, stored, active, _PER_MULTIPLY_ADD * active if multiplies else 0)


def _mixing(model: HyMo, context: int) -> Iterator[_Entry]:
    for index in range(len(model.layers)):
        layer = model.layer(index)
        yield _Entry(layer.mixer.name, index, flops=layer.mixer.mixing_flops(context))
        if layer.ffn is not None:
            yield _Entry(layer.ffn.component("") or layer.ffn.name, index, flops=layer.ffn.mixing_flops(context))
    yield _Entry(model.mtp.name, None, flops=model.mtp.mixing_flops(context))


def _heads(model: HyMo) -> Iterator[_Entry]:
    """Products with the output matrix: an untied one is a Linear and counted already; each extra head multiplies with it once more."""
    product = _PER_MULTIPLY_ADD * float(model.head_weight.numel())
    if model.head is None:
        yield _Entry(_own_rows(model)["embedding"], None, flops=product)
    yield _Entry(model.mtp.name, None, flops=len(model.mtp_weights) * product)


def _component(model: HyMo, row: str, entries: list[_Entry]) -> Component:
    layers = {entry.layer for entry in entries if entry.layer is not None}
    return Component(
        name=row,
        layers=len(layers) or (len(model.mtp_weights) if row == model.mtp.name else 1),
        active=round(sum(entry.active for entry in entries)),
        stored=sum(entry.stored for entry in entries),
        flops_per_token_forward=sum(entry.flops for entry in entries),
    )


def _layer_cost(model: HyMo, index: int, entries: list[_Entry], context: int, dtype: torch.dtype) -> LayerCost:
    layer = model.layer(index)
    own = [entry for entry in entries if entry.layer == index]
    state = layer.mixer.state_elems(0)
    cache = layer.mixer.state_elems(context) - state
    return LayerCost(
        index=index,
        name=layer.info.name,
        mixer=layer.mixer.name,
        ffn="none" if layer.ffn is None else layer.ffn.name,
        active=round(sum(entry.active for entry in own)),
        stored=sum(entry.stored for entry in own),
        flops_per_token_forward=sum(entry.flops for entry in own),
        cache_elems=cache,
        state_elems=state,
        cache_bytes=dtype.itemsize * cache,
        state_bytes=_state_bytes(layer.mixer, dtype),
    )


def _state_bytes(mixer: Block, dtype: torch.dtype) -> int:
    """Bytes of a state before its first token: each part is of the type that the mixer gives it. In fp32 when the mixer does not decode."""
    try:
        state = mixer.initial_state(1, "meta", dtype)
    except NotOffered:
        return _FP32 * mixer.state_elems(0)
    return sum(part.nbytes for part in tree_leaves(state) if isinstance(part, torch.Tensor))


# -- memory -----------------------------------------------------------------------------------------------------------------------
def memory(recipe: Recipe, micro_batch: int, device: str) -> dict[str, int]:
    """Bytes that training takes at its peak, by part, on one device of type `device` that holds everything and takes `micro_batch` rows at once.

    weights       fp32 masters
    gradients     fp32, of what is trained
    optimizer     two fp32 moments of AdamW; one of (Nor)Muon, which its row statistics hardly add to
    activations   estimate of what a forward pass keeps for the backward pass, see _kept_bytes; copies of weights in bf16 included;
                  compiled layers keep less
    logits        one chunk of logits, and the gradients that the loss computes ahead of the backward pass
    """
    dtype = torch.bfloat16 if recipe.train.dtype == "bf16" or (recipe.train.dtype == "auto" and device == "cuda") else torch.float32
    model, tokens = build_hymo(recipe, device="meta"), micro_batch * recipe.train.seq_len
    trained = {path: p.numel() for path, p in model.named_parameters() if p.requires_grad}
    moments = {path: 1 if recipe.optimizer.hidden != "adamw" and _is_mixer_matrix(model, path) else 2 for path in trained}
    compiled = recipe.train.compile is True or (recipe.train.compile == "auto" and device == "cuda")
    fused = _COMPILED if compiled else 1.0
    layers = [round(fused * _kept_bytes(layer, tokens, dtype)) for layer in model.layers]
    stream = _FP32 * tokens * model.config.d_model
    held = stream * len(layers) + max(layers) if model.checkpoint_activations else sum(layers)
    return {
        "weights": _FP32 * sum(p.numel() for p in model.parameters()),
        "gradients": _FP32 * sum(trained.values()),
        "optimizer": _FP32 * sum(moments[path] * size for path, size in trained.items()),
        "activations": held + round(fused * _kept_bytes(model.mtp, tokens, dtype)),
        "logits": _loss_bytes(model, tokens, device, dtype),
    }


def _is_mixer_matrix(model: HyMo, path: str) -> bool:
    owner = model.get_submodule(path.rpartition(".")[0])
    return path.startswith("layers.") and path.split(".")[2] == "mixer" and isinstance(owner, nn.Linear)


def _kept_bytes(module: nn.Module, tokens: int, dtype: torch.dtype) -> int:
    """Operand and result of every Linear product in `dtype`, routed ones by their active share; four copies of the fp32 stream for every norm of
    its width; a copy of the weights when `dtype` is not theirs. The margin covers what lies between; it was measured on the v1.0 blocks."""
    numbers, copies = 0.0, 0
    for path, part in module.named_modules():
        if isinstance(part, nn.RMSNorm):
            numbers += 4 * part.weight.numel() * _FP32 / dtype.itemsize
        elif isinstance(part, nn.Linear | GroupedLinear):
            share = math.prod(block.active_fraction(inner) for block, inner in enclosing(module, f"{path}.weight"))
            groups = part.weight.shape[0] if isinstance(part, GroupedLinear) else 1
            numbers += share * groups * sum(part.weight.shape[-2:])
            copies += 0 if dtype == part.weight.dtype else part.weight.numel()
    return dtype.itemsize * round(_MARGIN * tokens * numbers + copies)


def _loss_bytes(model: HyMo, tokens: int, device: str, dtype: torch.dtype) -> int:
    vocabulary, width = model.head_weight.shape
    chunk = min(tokens * vocabulary, CHUNK_NUMBERS.get(device, CHUNK_NUMBERS["cpu"]))
    work = dtype.itemsize if device == "cuda" else 16 + dtype.itemsize     # the kernel works in place; else fp32 copy, tanh, softmax, gradient
    copy = 0 if dtype == torch.float32 else dtype.itemsize * vocabulary * width
    per_head = _FP32 * vocabulary * width + dtype.itemsize * tokens * width
    return chunk * work + copy + (1 + len(model.mtp_weights)) * per_head
