"""Decoding: tokens per second and memory at batch 1 and 64 and at contexts of 4k and 32k, on the device there is.

    python benchmarks/decode.py [--scale SCALE] [--contexts 4096,32768] [--batches 1,64] [--seconds 150]

In one run, the same tokens for all:

    hymo                      recurrent states and latent cache, one recorded step replayed (on a GPU)
    hymo, launched            the same, every kernel launched from Python
    hymo, recomputing         no state: everything is read again for each token
    llama, transformers       dense, as many parameters as a token of hymo uses, grouped heads, transformers' DynamicCache

A prompt is read once and its state repeated over the batch. Memory is what decoding takes beyond the weights at its peak; `state` what it keeps, and
`stated` what `hymo count-params` says of it. A case that does not fit, or for which no time is left, says so. Writes results/decode.json.

Reached on one NVIDIA H200, torch 2.11, v1_0 at full scale (434.5M active), Llama of 430.8M (24 layers of width 1024, 16 heads in 4 groups), bf16;
tokens/s, and memory beyond the weights at its peak:

    batch, context      hymo               launched              recomputing           llama, transformers
     1,  4,096           188 (0.05 GiB)       24 (0.14 GiB)      25   (0.24 GiB)         19  (0.10 GiB)
    64,  4,096         6,561 (0.93 GiB)    1,424 (1.98 GiB)      49   (7.49 GiB)      1,090  (6.22 GiB)
     1, 32,768           179 (0.12 GiB)       22 (0.29 GiB)       4.8 (1.82 GiB)         19  (0.77 GiB)
    64, 32,768         2,204 (5.33 GiB)    1,388 (12.1 GiB)       4.9 (7.29 GiB)      1,068 (49.1 GiB)

From 4k to 32k a row's state grows by 70.0 MiB, which is MLA's 160 numbers a token in 8 layers and nothing else; state and `stated` are equal to
the byte. At 4k, replayed, kernels of convolution and SwiGLU made later give 209 and 7,091 tokens/s.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from hymo.block import Context
from hymo.cost import count, count_model
from hymo.generate.decode import Decoder
from hymo.init import fill, generator_for
from hymo.model import DecodeState, HyMo
from hymo.recipe import Recipe, load_recipe
from hymo.train.device import compute_dtype
from hymo.trained import empty_model

RESULTS = Path(__file__).parent / "results" / "decode.json"
WARM, STEPS = 4, 32
ROWS_TOKENS = 131_072       # read at once when everything is read again
LARGE = 1_000_000           # parameters beyond which weights are drawn on the device


def main() -> None:
    """Measure every case and print it as it comes."""
    options = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = load_recipe("v1_0", scale=options.scale or ("full" if device.type == "cuda" else "tiny"))
    dtype = compute_dtype("auto", device)
    deadline = time.monotonic() + options.seconds
    model, cost = build(recipe, device), count(recipe)
    peers: dict[str, Callable[[int, int], dict[str, Any]]] = {
        "hymo": lambda batch, context: ours(model, batch, context, dtype, replayed=True),
        "hymo, launched": lambda batch, context: ours(model, batch, context, dtype, replayed=False),
        "hymo, recomputing": lambda batch, context: recomputing(model, batch, context, dtype),
    }
    if importlib.util.find_spec("transformers"):
        llama = build_llama(cost.active, recipe.model.vocab_size, device, dtype)
        peers["llama, transformers"] = lambda batch, context: theirs(llama, batch, context)
    else:
        print("transformers is not installed: no peer")
    for replayed in (True, False):
        ours(model, 2, 16, dtype, replayed)     # kernels are built, and weights take their compute type
    rows = []
    print(f"{name_of(device)}, torch {torch.__version__}; {recipe.name} of {cost.active:,} active parameters, {str(dtype)[6:]}")
    print(f"{'':22} {'batch':>5} {'context':>8} {'tokens/s':>10} {'ms/token':>9} {'state':>12} {'stated':>12} {'beyond weights':>15}")
    for context in options.contexts:
        for batch in options.batches:
            for peer, run in peers.items():
                rows.append({"peer": peer, "batch": batch, "context": context, **tried(run, batch, context, deadline)})
                print(line(rows[-1]), flush=True)
    facts = {"device": name_of(device), "torch": torch.__version__, "python": platform.python_version(), "recipe": recipe.name}
    RESULTS.parent.mkdir(exist_ok=True)
    found = {**facts, "scale": options.scale, "dtype": str(dtype), "active": cost.active, "steps": STEPS, "rows": rows}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {RESULTS}")


def arguments() -> argparse.Namespace:
    """The command line."""
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cuda = torch.cuda.is_available()
    parser.add_argument("--scale", help="of v1_0; by default full on a GPU, tiny elsewhere")
    parser.add_argument("--contexts", type=numbers, default=[4096, 32768] if cuda else [256, 1024])
    parser.add_argument("--batches", type=numbers, default=[1, 64] if cuda else [1, 4])
    parser.add_argument("--seconds", type=float, default=150.0, help="after which no further case is begun")
    return parser.parse_args()


def tried(run: Callable[[int, int], dict[str, Any]], batch: int, context: int, deadline: float) -> dict[str, Any]:
    """What a case came to, or why it did not."""
    if time.monotonic() > deadline:
        return {"left_out": "no time left"}
    try:
        with torch.no_grad():
            return run(batch, context)
    except torch.OutOfMemoryError:
        return {"left_out": "does not fit"}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# -- ours -------------------------------------------------------------------------------------------------------------------------
def build(recipe: Recipe, device: torch.device) -> HyMo:
    """The model with random weights; large ones are drawn where they stay, which changes no figure here."""
    model = empty_model(recipe, device)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.numel() > LARGE:
                weight.normal_(0, weight.shape[-1] ** -0.5)
                continue
            value = torch.empty(weight.shape)
            fill(model, path, value, generator_for(0, path), model._init_embedding)
            weight.copy_(value)
    return model


def ours(model: HyMo, batch: int, context: int, dtype: torch.dtype, replayed: bool) -> dict[str, Any]:
    """Decode after reading one prompt, its state repeated."""
    memory = Memory()
    decoder = Decoder(model, [tokens(context, model.config.vocab_size)], dtype)
    decoder.read()
    decoder.state = repeated(decoder.state, batch)
    decoder.tokens_BT = decoder.tokens_BT[:, :1].expand(batch, -1)
    decoder.room = WARM + STEPS
    if replayed:
        decoder.reserve()
    memory.start()
    seconds = timed(decoder.step, batch, model.embedding.weight.device)
    held = sum(leaf.untyped_storage().nbytes() for leaf in tree_leaves(decoder.state.layers) if isinstance(leaf, Tensor))
    cost = count_model(model, context + WARM + STEPS, dtype)
    return {**figures(batch, seconds), "state_bytes": held, "stated_bytes": batch * (cost.kv_bytes + cost.state_bytes), **memory.peak(held)}


def repeated(state: DecodeState, batch: int) -> DecodeState:
    """The state of one row, for every row of a batch."""
    assert state.past is not None
    rows = lambda value: value.repeat_interleave(batch, dim=0) if isinstance(value, Tensor) else value  # noqa: E731
    return DecodeState(tree_map(rows, state.layers), Context(rows(state.past.positions_BT), rows(state.past.documents_BT)))


def recomputing(model: HyMo, batch: int, context: int, dtype: torch.dtype) -> dict[str, Any]:
    """Read everything again for one token of each row, as many rows at once as fit."""
    device = model.embedding.weight.device
    prompt = torch.tensor([tokens(context, model.config.vocab_size)], device=device)
    at_once = max(1, min(batch, ROWS_TOKENS // context))
    memory = Memory()
    memory.start()

    def once() -> None:
        for begin in range(0, batch, at_once):
            rows = min(at_once, batch - begin)
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                model.step(prompt.expand(rows, -1), model.initial_state(rows, dtype=dtype), last_only=True)

    if batch * context <= ROWS_TOKENS:
        once()      # the first of its shape
    return {**figures(batch, clock(once, device)), **memory.peak(0)}


# -- theirs -----------------------------------------------------------------------------------------------------------------------
def build_llama(active: int, vocabulary: int, device: torch.device, dtype: torch.dtype) -> Any:
    """A dense Llama whose parameters number `active`, to a layer: width 1024 and grouped heads at full size, less for small scales."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 1024 if active > 10**8 else 64
    heads, groups, inner = width // 64 if width > 64 else 4, 4, 4 * width
    head = width // heads
    layer = 2 * width * width + 2 * width * groups * head + 3 * width * inner
    layers = max(1, round((active - vocabulary * width) / layer))
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=min(groups, heads), max_position_embeddings=65_536, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    with device:
        llama = LlamaForCausalLM(config).to(dtype).eval()
    print(f"llama: {llama.num_parameters():,} parameters, width {width}, {layers} layers, {heads} heads, {min(groups, heads)} groups")
    return llama


def theirs(llama: Any, batch: int, context: int) -> dict[str, Any]:
    """Decode with transformers' own cache."""
    from transformers import DynamicCache

    device = next(llama.parameters()).device
    prompt = torch.tensor([tokens(context, llama.config.vocab_size)], device=device)
    memory = Memory()
    cache = DynamicCache(config=llama.config)
    keyword = cache_keyword(llama)
    llama(prompt, use_cache=True, logits_to_keep=1, **{keyword: cache})
    cache.batch_repeat_interleave(batch)
    memory.start()

    def step(tokens_B: Tensor) -> Tensor:
        return llama(tokens_B[:, None], use_cache=True, logits_to_keep=1, **{keyword: cache}).logits[:, -1]

    seconds = timed(step, batch, device)
    held = sum(tensor.untyped_storage().nbytes() for layer in cache.layers for tensor in (layer.keys, layer.values))
    return {**figures(batch, seconds), "state_bytes": held, **memory.peak(held)}


def cache_keyword(llama: Any) -> str:
    """transformers renamed its argument."""
    import inspect

    return "cache" if "cache" in inspect.signature(llama.forward).parameters else "past_key_values"


# -- measuring --------------------------------------------------------------------------------------------------------------------
def tokens(count: int, vocabulary: int) -> list[int]:
    """The same for everybody."""
    return torch.randint(min(vocabulary, 257), (count,), generator=torch.Generator().manual_seed(0)).tolist()


def timed(step: Callable[[Tensor], Tensor], batch: int, device: torch.device) -> float:
    """Seconds of one greedy step, mean over STEPS after WARM."""
    chosen = torch.zeros(batch, dtype=torch.int64, device=device)
    for _ in range(WARM):
        chosen = step(chosen).argmax(-1)

    def run() -> None:
        here = chosen
        for _ in range(STEPS):
            here = step(here).argmax(-1)

    return clock(run, device) / STEPS


def clock(run: Callable[[], None], device: torch.device) -> float:
    """Seconds that `run` takes, on the device too."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - began


class Memory:
    """Bytes allocated on the GPU beyond those at its making; nothing is known of a CPU's."""

    def __init__(self) -> None:
        self.known = torch.cuda.is_available()
        self.before = torch.cuda.memory_allocated() if self.known else 0

    def start(self) -> None:
        """Forget the peak of what came before decoding."""
        if self.known:
            torch.cuda.reset_peak_memory_stats()

    def peak(self, held: int) -> dict[str, int]:
        """The peak, and what of it is not the state."""
        if not self.known:
            return {}
        beyond = torch.cuda.max_memory_allocated() - self.before
        return {"beyond_weights_bytes": beyond, "work_bytes": beyond - held}


def figures(batch: int, seconds: float) -> dict[str, Any]:
    """Of one step that takes `seconds`."""
    return {"tokens_per_s": batch / seconds, "ms_per_step": 1e3 * seconds}


def name_of(device: torch.device) -> str:
    """The device in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    start = f"{row['peer']:22} {row['batch']:>5} {row['context']:>8}"
    if "left_out" in row:
        return f"{start} {row['left_out']}"
    state, stated, beyond = (f"{row[key] / 2**20:,.1f} MiB" if key in row else "" for key in ("state_bytes", "stated_bytes", "beyond_weights_bytes"))
    return f"{start} {row['tokens_per_s']:>10,.1f} {row['ms_per_step']:>9.3f} {state:>12} {stated:>12} {beyond:>15}"


if __name__ == "__main__":
    main()
