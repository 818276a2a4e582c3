"""Everything a run computes with, built for this machine: model, optimizers, feed, step."""

from __future__ import annotations

import torch
from torch import Tensor

from hymo.cost import count_model
from hymo.data import Data
from hymo.model import build_hymo
from hymo.recipe import Recipe
from hymo.train import micro_batch
from hymo.train.checkpoint import Checkpoint
from hymo.train.compiled import compile_layers
from hymo.train.device import compute_dtype, peak_flops
from hymo.train.feed import Feed
from hymo.train.optimizer import Optimizers
from hymo.train.orthogonal import arithmetic
from hymo.train.parallel import World, shard
from hymo.train.schedule import WSD, rows_per_step, total_steps
from hymo.train.spike import SpikeWatch
from hymo.train.step import Stepper
from hymo.train.tracker import Fact


class Session:
    """Builds it all. Raises BudgetError before anything is allocated when the estimate says that not even one row fits."""

    def __init__(self, recipe: Recipe, data: Data, world: World) -> None:
        train, device = recipe.train, world.device
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        torch.manual_seed(recipe.run.seed)
        self.recipe, self.world = recipe, world
        rows = micro_batch.estimated(recipe, world)
        self.dtype = compute_dtype(train.dtype, device)
        self.compiled = device.type == "cuda" if train.compile == "auto" else train.compile
        self.model = build_hymo(recipe, device)
        self.flops_per_token_train = count_model(self.model, train.seq_len).flops_per_token_train
        if self.compiled:
            compile_layers(self.model)
        if world.size > 1:
            shard(self.model, world)
        self.optimizers = Optimizers(self.model, recipe.optimizer)
        heads = len(self.model.mtp_weights)
        self.stepper = Stepper(
            self.model, self.optimizers, WSD(recipe.schedule, total_steps(train)), world, self.dtype, rows, recipe.optimizer.grad_clip,
            restore_on_bad=train.on_bad_loss == "skip",
            spikes=SpikeWatch(train.spike_sigma, train.spike_window, device) if train.spike_sigma else None,
        )
        if device.type == "cuda":
            self.stepper.micro_batch = micro_batch.tried(self.stepper, recipe, heads)
        self.feed = Feed(data.train(), rows_per_step(train), heads, device)
        self.peak = peak_flops(device, self.dtype)

    def groups(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint holds of it."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizers.tensors()}

    def load(self, found: Checkpoint) -> None:
        """Set model, optimizers and random generators as they were; with as many ranks as then, the micro-batch too."""
        for name, tensors in self.groups().items():
            found.load(name, tensors, self.world)
        found.restore_rng(self.world)
        recorded = int(found.state["micro_batch"])
        if found.state["ranks"] == self.world.size and recorded in micro_batch.candidates(self.recipe, self.world):
            self.stepper.micro_batch = recorded

    def mfu(self, tokens_per_s: float) -> float | None:
        """Model FLOP/s over the datasheet peak of all devices; None where there is no peak to compare with."""
        return tokens_per_s * self.flops_per_token_train / (self.peak * self.world.size) if self.peak else None

    @property
    def facts(self) -> dict[str, Fact]:
        """What was decided here, for the log."""
        device = self.world.device
        rows = micro_batch.rows_per_rank(self.recipe, self.world.size)
        return {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "world": self.world.size,
            "dtype": str(self.dtype).removeprefix("torch."),
            "micro_batch": self.stepper.micro_batch,
            "accumulation": rows // self.stepper.micro_batch,
            "compiled": str(self.compiled),
            "newton_schulz": str(arithmetic(device)).removeprefix("torch."),
            "peak_tflops": self.peak / 1e12 if self.peak else "unknown: no MFU",
            "flops_per_token_train": self.flops_per_token_train,
            **{f"kernel/{op}": impl for block in self.model.blocks() for op, impl in block.kernels(device).items()},
        }
