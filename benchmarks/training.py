"""Training speed of the v1.0 stack: tokens/s, MFU, peak memory, and where a step's time goes; a dense Llama of equal active parameters beside it.

    python benchmarks/training.py [KEY=VALUE …] [--steps 20] [--warmup 3] [--profile] [--peer] [--off NAME …] [--losses FILE]

Full scale at T=4096 unless told otherwise, on the recipe's data (`data=builtin` here). A step is timed as training runs it: feed, forward, backward,
clipping, optimizer, and the step's numbers read one step late. `--off` switches an optimisation off, to see what it brings and that the losses
agree. Needs a CUDA device, except at `--scale tiny` with `train.device=cpu`, to try the script itself.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from parts import table

from hymo.data import open_data
from hymo.recipe import Recipe, load_recipe
from hymo.train import moment
from hymo.train.device import peak_flops
from hymo.train.parallel import World, joined
from hymo.train.session import Session
from hymo.train.step import Pending

GEMM_FLOPS = {"NVIDIA H200": 641e12}        # measured there: bf16, 16384 × 896 × 1280


def dense_mask() -> list[str]:
    """A full mask of documents in scaled_dot_product_attention instead of block masks."""
    import hymo.ops.attention

    hymo.ops.attention.LONG = 1 << 30
    return []


def unfused_loss() -> list[str]:
    """Plain chunks instead of the head's kernel."""
    import hymo.ops.linear_cross_entropy

    hymo.ops.linear_cross_entropy.resolve_impl = lambda impl, device: "chunked"
    return []


def plain(operation: str) -> Callable[[], list[str]]:
    """PyTorch's own operations, fused by the compiler where that is on, instead of the operation's kernel."""

    def switch() -> list[str]:
        importlib.import_module(f"hymo.ops.{operation}").resolve_impl = lambda impl, device: "reference"
        return []

    return switch


def single_newton_schulz() -> list[str]:
    """One matrix at a time instead of stacks."""
    import hymo.train.normuon

    hymo.train.normuon.STACK = 1
    return []


OFF: dict[str, Callable[[], list[str]]] = {
    "compile": lambda: ["train.compile=false"],
    "block_mask": dense_mask,
    "recurrence": lambda: ["model.layers.G.mixer.impl=chunked"],
    "loss": unfused_loss,
    "conv": plain("short_conv"),
    "swiglu": plain("swiglu"),
    "stacks": single_newton_schulz,
}


@dataclass
class Run:
    """What a run of some steps came to."""

    losses: list[float]
    seconds: list[float]
    first: float        # seconds from nothing to the end of the first step
    peak: int
    session: Session


def run(recipe: Recipe, world: World, steps: int, losses_file: str | None) -> Run:
    """Train `steps` steps as hymo.train.loop does: the numbers of a step are read while the next one runs."""
    if losses_file and world.first:
        Path(losses_file).write_text("")
    began = time.perf_counter()
    data = open_data(recipe, world.rank, world.size)
    opened = time.perf_counter()
    session = Session(recipe, data, world)
    losses, seconds = [], []
    waiting: list[Pending] = []
    ready, clock = time.perf_counter(), moment.now(world.device)
    if world.first:
        print(f"data {opened - began:.1f} s, session {ready - opened:.1f} s, micro-batch {session.stepper.micro_batch}", flush=True)

    def settle() -> None:
        nonlocal clock
        step = waiting.pop(0)
        losses.append(step.read()["loss/main"])
        seconds.append(moment.seconds(clock, step.done))
        clock = step.done
        if losses_file and world.first:
            with Path(losses_file).open("a") as file:
                file.write(f"{losses[-1]:.6f}\n")

    first = 0.0
    for update in range(steps):
        waiting.append(session.stepper(session.feed.next(), update, False))
        if update == 0:
            settle()
            first = time.perf_counter() - opened
            if world.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
        elif len(waiting) > 1:
            settle()
    while waiting:
        settle()
    peak = torch.cuda.max_memory_allocated() if world.device.type == "cuda" else 0
    return Run(losses, seconds, first, peak, session)


def report(recipe: Recipe, world: World, done: Run, warmup: int) -> None:
    """Speed over the steps after the warm-up."""
    kept = done.seconds[warmup:]
    rate = recipe.train.tokens_per_step * len(kept) / sum(kept)
    flops = rate * done.session.flops_per_token_train / world.size
    peak, gemm = peak_flops(world.device, done.session.dtype), GEMM_FLOPS.get(device_name(world))
    shares = [f"MFU {flops / peak:.1%}" if peak else "", f"{flops / gemm:.1%} of the measured matrix product" if gemm else ""]
    print(
        f"{rate:,.0f} tokens/s over {len(kept)} steps of {recipe.train.tokens_per_step:,} tokens "
        f"(median step {statistics.median(kept) * 1e3:.0f} ms, slowest {max(kept) * 1e3:.0f}), {''.join(f'{share}, ' for share in shares if share)}"
        f"peak {done.peak / 2**30:.1f} GiB, first step after {done.first:.0f} s, "
        f"micro-batch {done.session.stepper.micro_batch}, loss {done.losses[0]:.4f} → {done.losses[-1]:.4f}",
        flush=True,
    )


def profile(recipe: Recipe, world: World, session: Session, updates: int) -> None:
    """Profile two steps of two micro-batches, the second launched while the first runs, as in training."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    fed = session.feed.next()
    rows = min(2 * session.stepper.micro_batch, len(fed.batch))
    fed = type(fed)(fed.batch.rows(0, rows), fed.counts, fed.state, fed.index)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if world.device.type == "cuda" else [])]
    session.stepper(fed, updates, False).read()
    with profiler(activities=activities, record_shapes=True) as prof:
        for pending in [session.stepper(fed, updates, False) for _ in range(2)]:
            pending.read()
    print(table(prof, 2 * rows * recipe.train.seq_len), flush=True)


def peer(tokens_per_step: int, rows: int, length: int, vocabulary: int, steps: int) -> None:
    """A dense Llama of as many parameters as v1.0 has active ones (432.9M, 434.5M), as transformers trains it: fp32 weights, bf16 autocast, SDPA."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=1024, intermediate_size=2880, num_hidden_layers=32, num_attention_heads=16, num_key_value_heads=4,
        max_position_embeddings=length, tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(vocabulary, (tokens_per_step // length, length), device="cuda")
    for compiled in (False, True):
        if compiled:
            model.compile()
        taken = []
        for _ in range(steps):
            began = time.perf_counter()
            for micro in tokens.split(rows):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = model(input_ids=micro, labels=micro).loss
                (loss * len(micro) / len(tokens)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        rate = tokens_per_step / statistics.median(taken[2:])
        print(f"transformers Llama, {parameters / 1e6:.1f}M dense, {'compiled' if compiled else 'eager'}: {rate:,.0f} tokens/s, "
              f"{6 * parameters * rate / 1e12:.0f} TFLOP/s of 6N, micro-batch {rows}", flush=True)


def device_name(world: World) -> str:
    return torch.cuda.get_device_name() if world.device.type == "cuda" else "cpu"


def options() -> Iterator[argparse.Namespace]:
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, as `hymo run` takes them")
    parser.add_argument("--recipe", default="v1_0")
    parser.add_argument("--scale", default="full")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--off", nargs="*", default=[], choices=OFF)
    parser.add_argument("--losses", help="file that the loss of every step is written to")
    yield parser.parse_intermixed_args()


def main() -> None:
    [asked] = options()
    switched = [override for name in asked.off for override in OFF[name]()]
    overrides = ["data=builtin", f"train.steps={asked.steps + 2}", "data.max_epochs=1000", *switched, *asked.overrides]
    recipe = load_recipe(asked.recipe, overrides, scale=asked.scale)
    with joined(recipe.train.device) as world:
        if world.first:
            versions = f"torch {torch.__version__}" + (f", triton {version('triton')}" if importlib.util.find_spec("triton") else "")
            print(f"{world.size} × {device_name(world)}, {versions}, T={recipe.train.seq_len}, off: {', '.join(asked.off) or 'nothing'}", flush=True)
        done = run(recipe, world, asked.steps, asked.losses)
        if world.first:
            report(recipe, world, done, asked.warmup)
        if asked.profile:
            profile(recipe, world, done.session, asked.steps)
        done.session.feed.close()
        rows = done.session.stepper.micro_batch
    if asked.peer:
        del done
        torch.cuda.empty_cache()
        peer(min(recipe.train.tokens_per_step, 131072), min(rows, 8), recipe.train.seq_len, recipe.model.vocab_size, 8)


def version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


if __name__ == "__main__":
    main()
