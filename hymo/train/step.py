"""One optimizer step: micro-batches, gradients, clipping, update. Nothing in it waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hymo.data.batch import Batch
from hymo.model import HyMo, Losses
from hymo.train import moment
from hymo.train.feed import Fed
from hymo.train.optimizer import Optimizers, clip_gradients, gradient_squares
from hymo.train.parallel import World
from hymo.train.schedule import WSD
from hymo.train.spike import SpikeWatch


class Pending:
    """Numbers on their way from the device to the host; `done` marks the end of the step that they are of."""

    def __init__(self, values: dict[str, Tensor], known: dict[str, float]) -> None:
        self.names, self.known = list(values), known
        self._host = vector = torch.stack([value.detach().float() for value in values.values()])
        if vector.is_cuda:
            self._host = torch.empty(vector.shape, pin_memory=True)
            self._host.copy_(vector, non_blocking=True)
        self.done = moment.now(vector.device)

    def read(self) -> dict[str, float]:
        """Wait for them."""
        moment.wait(self.done)
        return {**dict(zip(self.names, self._host.tolist(), strict=True)), **self.known}


@dataclass
class Stepper:
    """What a step works on."""

    model: HyMo
    optimizers: Optimizers
    schedule: WSD
    world: World
    dtype: torch.dtype
    micro_batch: int
    grad_clip: float
    restore_on_bad: bool                                # a bad step leaves the balancing state as it was, too
    spikes: SpikeWatch | None = None
    balancing: list[Tensor] = field(init=False)         # what moves without a gradient: counters, load averages, router biases

    def __post_init__(self) -> None:
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        self.balancing = [tensor for name, tensor in self.model.state_dict().items() if name not in trained]

    def __call__(self, fed: Fed, update: int, stop: bool) -> Pending:
        """Update number `update`: every gradient is that of

            Σ main_sum/main_count + Σ_k w_k Σ mtp_sum_k/mtp_count_k + mean(aux)

        over all rows of all ranks, with the counts of the whole step, so that neither the micro-batch nor the number of ranks matters. When the
        gradient is not finite, or the loss is a spike, weights and moments stay as they are.
        """
        before = [tensor.clone() for tensor in self.balancing] if self.restore_on_bad else []
        totals = self.backward(fed.batch, self.world.sum(fed.counts))
        parameters = list(self.optimizers.parameters())
        totals["squares"] = gradient_squares(parameters)
        totals["stop"] = torch.full_like(totals["squares"], float(stop))
        summed = dict(zip(totals, self.world.sum(torch.stack([t.detach().float() for t in totals.values()])).unbind(), strict=True))
        norm = summed.pop("squares").sqrt()
        bad = (~(norm.isfinite() & summed["loss/total"].isfinite())).float()
        if self.spikes is not None:
            summed["spike"] = (self.spikes(summed["loss/main"]) & ~bad.bool()).float()
            bad = bad + summed["spike"]
            self.spikes.remember(summed["loss/main"], bad)
        clip_gradients(parameters, norm, self.grad_clip)
        rates = self.optimizers.step(self.schedule(update), bad)
        self.optimizers.zero_grad()
        reported = self.model.after_optimizer_step(self.world.sum)
        for tensor, old in zip(self.balancing, before, strict=False):
            tensor.copy_(torch.where(bad.bool(), old, tensor))
        return Pending({**summed, **reported, "grad_norm": norm, "bad": bad}, rates)

    def backward(self, batch: Batch, counts: Tensor) -> dict[str, Tensor]:
        """Accumulate the gradients of this rank's rows, `counts` labels over all ranks; returns its share of every number summed over ranks."""
        counts = counts.clamp(min=1)
        totals: dict[str, Tensor] = {}
        starts = range(0, len(batch), self.micro_batch)
        for start in starts:
            rows = batch.rows(start, start + self.micro_batch)
            if self.world.size > 1:
                self._sync(last=start == starts[-1])
            with self.autocast():
                losses = self.model.loss(rows)
            parts = self._parts(losses, counts, len(rows) / (len(batch) * self.world.size))
            torch.autograd.backward(parts["loss/total"] * self.world.size)      # FSDP2 takes the mean over ranks
            for name, value in parts.items():
                totals[name] = totals[name] + value.detach() if name in totals else value.detach()
        return totals

    def _parts(self, losses: Losses, counts: Tensor, share: float) -> dict[str, Tensor]:
        parts = {"loss/main": losses.main_sum / counts[0]}
        total = parts["loss/main"]
        for k, (weight, mtp_sum) in enumerate(zip(self.model.mtp_weights, losses.mtp_sums, strict=True), start=1):
            parts[f"loss/mtp_{k}"] = mtp_sum / counts[k]
            total = total + weight * parts[f"loss/mtp_{k}"]
        for name, value in losses.aux.items():
            parts[f"loss/{name}"] = value * share
            total = total + parts[f"loss/{name}"]
        return {**parts, "loss/total": total, **{name: value * share for name, value in losses.metrics.items()}}

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """bf16 products over fp32 masters; nothing when the type is fp32."""
        with torch.autocast(self.world.device.type, self.dtype, enabled=self.dtype != torch.float32):
            yield

    def _sync(self, last: bool) -> None:
        """FSDP2: reduce gradients and free gathered weights after the last micro-batch only."""
        self.model.set_requires_gradient_sync(last)             # type: ignore[operator]  # fully_shard added these methods
        self.model.set_reshard_after_backward(last)             # type: ignore[operator]
