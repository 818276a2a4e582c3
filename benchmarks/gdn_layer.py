"""Where the time of one GDN layer of v1.0 goes, forward and backward: its matrix products, its recurrence, its convolution, and what is left.

    python benchmarks/gdn_layer.py [--rows 8] [--length 4096] [--scale SCALE]

Norm, mixer and residual, compiled as training compiles them, bf16 autocast over fp32 masters, rows of several documents. Median times, launched from
Python and replayed as a CUDA graph, and per 16,384 tokens. The convolution is also timed as torch.compile makes it of the reference and, where it is
installed, as flash-linear-attention has it. Writes results/gdn_layer.json. Without a CUDA device, only the script itself is tried, with `--scale tiny
--rows 2 --length 64`.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hymo import Context, build_hymo, load_recipe
from hymo.model import Layer
from hymo.ops.gated_recurrence import gated_recurrence
from hymo.ops.short_conv import short_conv
from hymo.train.compiled import compile_layers

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DOCUMENT = 512          # tokens, in the mean
RESULTS = Path(__file__).parent / "results" / "gdn_layer.json"
Call = Callable[[], Any]


def one_layer(scale: str) -> Layer:
    """The one layer of a model that has no other, compiled."""
    model = build_hymo(load_recipe("v1_0", ["model.pattern=G", "model.layers.M=null"], scale=scale), DEVICE)
    compile_layers(model)
    return model.layer(0)


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype).requires_grad_()


def whole(layer: Layer, ctx: Context) -> Call:
    """The layer on the residual stream, which is fp32."""
    x = draw(*ctx.positions_BT.shape, layer.info.d_model, dtype=torch.float32)
    leaves, dy = [x, *layer.parameters()], torch.randn_like(x)

    def run() -> tuple[Tensor, ...]:
        with torch.autocast(DEVICE, torch.bfloat16):
            y = layer(x, ctx)
        return torch.autograd.grad(y, leaves, dy)

    return run


def products(layer: Layer, tokens: int) -> Call:
    """Each projection's product and the two of its gradients."""
    operands = []
    for linear in (module for module in layer.modules() if isinstance(module, nn.Linear)):
        d_out, d_in = linear.weight.shape
        operands.append([draw(*shape).detach() for shape in ((tokens, d_in), (d_out, d_in), (tokens, d_out))])

    def run() -> None:
        for x, weight, dy in operands:
            x @ weight.T, dy @ weight, dy.T @ x

    return run


def recurrence(layer: Layer, ctx: Context) -> Call:
    config, shape = layer.mixer.config, ctx.positions_BT.shape
    H, S, D = config.n_heads, config.d_state, config.head_dim
    v, b, c = (draw(*shape, H, width) for width in (D, S, S))
    g = torch.rand(*shape, H, device=DEVICE).requires_grad_()
    A = (-torch.arange(1.0, H + 1, device=DEVICE)[:, None].expand(H, S)).contiguous().requires_grad_()
    return both(lambda v, b, c, g, A: gated_recurrence(v, b, c, g, A, starts_BT=ctx.starts_BT)[0], v, b, c, g, A)


def convolutions(layer: Layer, ctx: Context) -> dict[str, Call]:
    """By name, convolution and SiLU of the same numbers."""
    width, channels, starts = layer.mixer.config.d_conv, layer.mixer.config.d_inner, ctx.starts_BT
    assert starts is not None
    x, weight = draw(*starts.shape, channels), draw(channels, width, dtype=torch.float32)

    def conv(x: Tensor, weight: Tensor, impl: Any) -> Tensor:
        return short_conv(x, weight, starts_BT=starts, activation="silu", impl=impl)[0]

    runs = {"triton": both(partial(conv, impl="triton"), x, weight)} if CUDA else {}
    runs["reference, compiled"] = both(torch.compile(partial(conv, impl="reference"), dynamic=False), x, weight)
    if CUDA and importlib.util.find_spec("fla"):
        from fla.modules.causal_conv1d import causal_conv1d

        begins = starts.clone()
        begins[:, 0] = True
        bounds = torch.cat([begins.flatten().nonzero().flatten(), torch.tensor([starts.numel()], device=DEVICE)])

        def peer(x: Tensor, weight: Tensor) -> Tensor:
            y: Tensor = causal_conv1d(x.view(1, -1, channels), weight, activation="silu", cu_seqlens=bounds)[0]
            return y.view(x.shape)

        runs["flash-linear-attention"] = both(peer, x, weight)
    return runs


def both(run: Callable[..., Tensor], *leaves: Tensor) -> Call:
    """Forward and backward."""
    dy = torch.randn_like(run(*leaves))
    return lambda: torch.autograd.grad(run(*leaves), leaves, dy)


def timed(run: Call) -> dict[str, float]:
    """Median ms, launched from Python and, on a GPU, replayed as a CUDA graph."""
    run()
    if not CUDA:
        begin = time.perf_counter()
        run()
        return {"ms": 1e3 * (time.perf_counter() - begin)}
    from triton.testing import do_bench, do_bench_cudagraph

    launched = do_bench(run, warmup=100, rep=500, return_mode="median")
    with torch.cuda.stream(torch.cuda.Stream()):
        return {"ms": launched, "graph_ms": do_bench_cudagraph(run, rep=200, return_mode="median")}


def versions() -> dict[str, str]:
    names = {"device": torch.cuda.get_device_name() if CUDA else "cpu", "torch": torch.__version__}
    if importlib.util.find_spec("triton"):
        import triton

        names["triton"] = triton.__version__
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--scale", default="full")
    arguments = parser.parse_args()
    tokens = arguments.rows * arguments.length

    torch.manual_seed(0)
    layer = one_layer(arguments.scale)
    documents = (torch.rand(arguments.rows, arguments.length, device=DEVICE) < 1 / DOCUMENT).cumsum(dim=1)
    ctx = Context.for_tokens((arguments.rows, arguments.length), DEVICE, documents)
    layer.prepare(ctx)
    parts = {"whole layer": whole(layer, ctx), "matrix products": products(layer, tokens), "recurrence": recurrence(layer, ctx)}
    parts |= {f"convolution, SiLU: {name}": run for name, run in convolutions(layer, ctx).items()}

    about = versions()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{arguments.rows} rows of {arguments.length} tokens in documents of {DOCUMENT}; forward and backward, ms (ms per 16,384 tokens)")
    rows: dict[str, dict[str, float]] = {}

    def keep(name: str, figures: dict[str, float]) -> None:
        rows[name] = figures
        print(f"{name:44}", *(f"{key} {value:8.3f} ({value * 16_384 / tokens:.3f})" for key, value in figures.items()), flush=True)
        if CUDA:
            RESULTS.write_text(json.dumps({**about, "rows": arguments.rows, "length": arguments.length, "parts": rows}, indent=1) + "\n")

    names = list(parts)
    for name in names[:4]:
        keep(name, timed(parts[name]))
    keep("left", {key: value - sum(rows[name][key] for name in names[1:4]) for key, value in rows[names[0]].items()})
    for name in names[4:]:
        keep(name, timed(parts[name]))


if __name__ == "__main__":
    main()
