"""How good a model is on held-out text: loss, bits per byte, and loss by the length of context that was read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hymo.block import Context
from hymo.data import Batch, Data
from hymo.data.batch import IGNORED
from hymo.model import HyMo
from hymo.recipe import Recipe
from hymo.train.device import compute_dtype
from hymo.train.parallel import World


@dataclass(frozen=True)
class EvalResult:
    """Results over the held-out tokens.

    loss               nats per label, main head
    bpb                bits per byte: nats over labels that stand for bytes / (ln 2 · those bytes). A token of no bytes (`<|endoftext|>`) is in
                       neither. None when no label stands for bytes (a synthetic task)
    tokens             labels counted in `loss`
    loss_by_position   {2^j: nats per label} over the labels whose context inside their own document is 2^j … 2^(j+1)−1 tokens long
    measures           what the blocks measured, mean over tokens: `moe/load/M0`, the share of each expert; `decay_rate/G0`, −log decay of each head
    """

    loss: float
    bpb: float | None
    tokens: int
    loss_by_position: dict[int, float]
    measures: dict[str, list[float]] = field(default_factory=dict)


@torch.no_grad()
def evaluate(model: HyMo, data: Data, recipe: Recipe, *, world: World | None = None, rows: int | None = None, measure: bool = False) -> EvalResult:
    """The model in evaluation mode on all of `data.validation`, under the recipe's compute type; its mode is restored.

    `rows` at once, by default about 16,384 tokens. With a `world`, every rank reads its share and all get the result. `measure` asks the blocks for
    what they measure, too.
    """
    device = next(model.parameters()).device
    world = world or World(device)
    dtype = compute_dtype(recipe.train.dtype, device)
    size = rows or max(1, 16_384 // recipe.train.seq_len)
    bytes_W = data.tokenizer.bytes_per_token.to(device)
    sums = Sums.zeros(recipe.train.seq_len, device)
    training = model.training
    model.eval()
    try:
        for batch in data.validation(size):
            moved = batch.to(device)
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                losses = model.loss(moved, per_token=True, mtp=False, measure=measure)
            assert losses.per_token_BT is not None
            sums.add(moved, losses.per_token_BT, bytes_W)
            sums.add_measures(losses.measures)
    finally:
        model.train(training)
    return sums.result(world)


@dataclass
class Sums:
    """Running sums, float64: for each bucket of context length (nats, labels), and over labels that stand for bytes (nats, bytes)."""

    buckets_2J: Tensor
    bytes_2: Tensor
    measures: dict[str, Tensor] = field(default_factory=dict)       # sums over tokens, their number last

    @staticmethod
    def zeros(seq_len: int, device: torch.device) -> Sums:
        buckets = seq_len.bit_length()
        return Sums(torch.zeros(2, buckets, dtype=torch.float64, device=device), torch.zeros(2, dtype=torch.float64, device=device))

    def add(self, batch: Batch, nats_BT: Tensor, bytes_W: Tensor) -> None:
        """Count one batch; nothing waits for the device."""
        labels_BT = batch.labels()
        counted_BT = labels_BT != IGNORED
        nats_BT = nats_BT.double() * counted_BT
        context_BT = Context.for_tokens((labels_BT.shape[0], labels_BT.shape[1]), labels_BT.device, batch.input_documents).positions_BT + 1
        bucket_N = torch.log2(context_BT.double()).floor().long().flatten()
        for row, values_BT in zip(self.buckets_2J, (nats_BT, counted_BT.double()), strict=True):
            row.index_add_(0, bucket_N, values_BT.flatten())
        size_BT = bytes_W[labels_BT.clamp(min=0)] * counted_BT
        self.bytes_2 += torch.stack([(nats_BT * (size_BT > 0)).sum(), size_BT.sum().double()])

    def add_measures(self, measures: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Count what the blocks measured on one batch."""
        for name, (total_X, tokens) in measures.items():
            both = torch.cat([total_X, tokens[None].to(total_X.dtype)])
            self.measures[name] = self.measures[name] + both if name in self.measures else both

    def result(self, world: World) -> EvalResult:
        """Bring the sums of all ranks together, and to the host."""
        parts = [self.buckets_2J.flatten(), self.bytes_2, *self.measures.values()]
        buckets, of_bytes, *measured = torch.split(world.sum(torch.cat(parts)), [len(part) for part in parts])
        nats, counts = buckets.view(2, -1).tolist()
        byte_nats, size = of_bytes.tolist()
        total = sum(counts)
        return EvalResult(
            loss=sum(nats) / total if total else math.nan,
            bpb=byte_nats / (math.log(2) * size) if size else None,
            tokens=int(total),
            loss_by_position={2**j: nats[j] / count for j, count in enumerate(counts) if count},
            measures={name: (both[:-1] / both[-1].clamp(min=1)).tolist() for name, both in zip(self.measures, measured, strict=True)},
        )
