"""The gated recurrence on one GPU: ours beside the sequential design and, where it is installed, flash-linear-attention's chunk_gla.

    python benchmarks/gated_recurrence.py [--peer quick|full|none] [--no-sweep]

One run, the same inputs for all: median times (of the work alone, replayed as a CUDA graph, and launched from Python), memory beyond inputs,
outputs and gradients, errors against float64, and the time of the first forward and backward on an empty cache. Then ours at T from 512 to 65,536
with B·T constant, and at S, D of 64 and 128. The peer tunes itself for minutes at each new shape: "quick" leaves it at most four configurations a
kernel, "full" all of them, compiled in parallel first. Writes results/gated_recurrence.json.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.autotuner import Autotuner
from triton.testing import do_bench, do_bench_cudagraph

from hymo.ops.gated_recurrence import gated_recurrence

B, T, H, S, D = 4, 4096, 40, 32, 32
RESULTS = Path(__file__).parent / "results" / "gated_recurrence.json"
FIRST_CALL, PEER_SHARE = "first call", "peer share"        # of this script, run in a process of its own


@triton.jit
def sequential_kernel(v_ptr, b_ptr, c_ptr, g_ptr, A_ptr, states_ptr, o_ptr, T, H, S: tl.constexpr, D: tl.constexpr):
    """One program a sequence and head, token after token; every state is kept for the backward."""
    head, row = tl.program_id(0), tl.program_id(1)
    s, d = tl.arange(0, S), tl.arange(0, D)
    A = tl.load(A_ptr + head * S + s)
    state = tl.zeros([S, D], tl.float32)
    for t in range(T):
        at = (row.to(tl.int64) * T + t) * H + head
        v, b, c = tl.load(v_ptr + at * D + d), tl.load(b_ptr + at * S + s), tl.load(c_ptr + at * S + s)
        state = state * tl.exp(tl.load(g_ptr + at).to(tl.float32) * A)[:, None] + b.to(tl.float32)[:, None] * v.to(tl.float32)[None, :]
        tl.store(states_ptr + at * S * D + s[:, None] * D + d[None, :], state)
        tl.store(o_ptr + at * D + d, tl.sum(c.to(tl.float32)[:, None] * state, axis=0).to(o_ptr.dtype.element_ty))


def sequential(v: Tensor, b: Tensor, c: Tensor, g: Tensor, A: Tensor) -> Tensor:
    rows, length, heads, width = v.shape
    states, o = v.new_empty(rows, length, heads, A.shape[1], width, dtype=torch.float32), torch.empty_like(v)
    sequential_kernel[heads, rows](v, b, c, g, A, states, o, length, heads, S=A.shape[1], D=width, num_warps=1)
    return o


def ours(v: Tensor, b: Tensor, c: Tensor, g: Tensor, A: Tensor) -> Tensor:
    return gated_recurrence(v, b, c, g, A, impl="triton")[0]


def peer(tuning: str) -> Callable[..., Tensor] | None:
    """chunk_gla as the same function: keys b, queries c, log decays g·A in float32."""
    if tuning == "none" or importlib.util.find_spec("fla") is None:
        return None
    if tuning == "quick":
        limit_tuning(lambda configs: configs[:: max(1, -(-len(configs) // 4))])
    else:
        compile_peer()
    return chunk_gla


def chunk_gla(v: Tensor, b: Tensor, c: Tensor, g: Tensor, A: Tensor) -> Tensor:
    from fla.ops.gla import chunk_gla

    o: Tensor = chunk_gla(c, b, v, g[..., None].float() * A, scale=1.0)[0]
    return o


def limit_tuning(choose: Callable[[list[Any]], list[Any]]) -> None:
    """From now on a kernel is tuned over the chosen ones of its configurations only."""
    begin = Autotuner.__init__

    def begin_with_few(self: Autotuner, fn: Any, names: Any, configs: list[Any], *args: Any, **kwargs: Any) -> None:
        begin(self, fn, names, choose(configs), *args, **kwargs)

    Autotuner.__init__ = begin_with_few


def compile_peer() -> None:
    """Compile all of the peer's configurations, in as many processes as there are cores: tuning would compile them one by one, for minutes."""
    begin, count = time.perf_counter(), min(16, os.cpu_count() or 1)
    shares = [[sys.executable, "-W", "ignore", __file__, PEER_SHARE, str(share), str(count)] for share in range(count)]
    for process in [subprocess.Popen(share, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for share in shares]:
        process.wait()
    print(f"compiling chunk_gla's configurations in {count} processes: {time.perf_counter() - begin:.0f} s", flush=True)


def compile_share(share: int, count: int) -> None:
    """Run the peer once with every count-th configuration of its kernels; what does not run here is left for the tuning to find out."""
    limit_tuning(lambda configs: configs[share % len(configs) :: count])
    inputs = draw(B, T)
    chunk_gla(*inputs).sum().backward()


def draw(rows: int, length: int, state: int = S, width: int = D) -> list[Tensor]:
    """v, b, c, g, A; rates as GDN starts them, −1 … −H."""
    torch.manual_seed(0)
    v, b, c = (torch.randn(rows, length, H, n, device="cuda", dtype=torch.bfloat16) for n in (width, state, state))
    g = torch.sigmoid(torch.randn(rows, length, H, device="cuda")).bfloat16()
    A = -torch.arange(1.0, H + 1, device="cuda")[:, None].expand(H, state).contiguous()
    return [x.requires_grad_() for x in (v, b, c, g, A)]


def measure(run: Callable[..., Tensor], inputs: list[Tensor], backward: bool = True) -> dict[str, float]:
    weight = torch.randn_like(inputs[0])

    def forward() -> Tensor:
        with torch.no_grad():
            return run(*inputs)

    def both() -> tuple[Tensor, ...]:
        o = run(*inputs)
        return o, *torch.autograd.grad(o, inputs, weight)

    result = timed("forward", forward)
    if backward:
        result |= timed("both", both)
    return result


def timed(name: str, run: Callable[[], Any]) -> dict[str, float]:
    """Wall time of calls from Python, and of the same work replayed as a CUDA graph, without what launching costs the host."""
    run()
    result = {f"{name}_ms": do_bench(run, return_mode="median"), f"{name}_extra_bytes": extra_bytes(run)}
    with torch.cuda.stream(torch.cuda.Stream()):
        result[f"{name}_graph_ms"] = do_bench_cudagraph(run, rep=50, return_mode="median")
    return result


def extra_bytes(run: Callable[[], Any]) -> int:
    """Peak memory beyond what is there before and what the call returns."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = run()
    torch.cuda.synchronize()
    returned = sum(x.numel() * x.element_size() for x in (results if isinstance(results, tuple) else (results,)))
    return torch.cuda.max_memory_allocated() - before - returned


def errors(run: Callable[..., Tensor], inputs: list[Tensor]) -> dict[str, float]:
    """‖x − float64‖ / ‖float64‖ of o and of each gradient."""
    exact = [x.detach().double().requires_grad_() for x in inputs]
    o, truth = run(*inputs), gated_recurrence(*exact, impl="chunked")[0]
    weight = torch.randn_like(o)
    got = [o, *torch.autograd.grad(o, inputs, weight)]
    expected = [truth, *torch.autograd.grad(truth, exact, weight.double())]
    names = ("o", "dv", "db", "dc", "dg", "dA")
    return {n: ((x.double() - y).norm() / y.norm()).item() for n, x, y in zip(names, got, expected, strict=True)}


def first_call() -> None:
    """Time of the first forward and backward in a process of its own; imports and the CUDA context not counted."""
    inputs = draw(B, T)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    ours(*inputs).sum().backward()
    torch.cuda.synchronize()
    print(time.perf_counter() - begin)


def first_call_seconds() -> float:
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "TRITON_CACHE_DIR": empty}
        done = subprocess.run([sys.executable, __file__, FIRST_CALL], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def line(name: str, figures: dict[str, float]) -> dict[str, Any]:
    parts = [
        f"{figures[f'{part}_graph_ms']:8.3f} ms ({figures[f'{part}_ms']:.3f} launched) {figures[f'{part}_extra_bytes'] / 1e9:6.3f} GB"
        for part in ("forward", "both")
        if f"{part}_ms" in figures
    ]
    print(f"{name:44}", *parts, flush=True)
    return {"name": name, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=("quick", "full", "none"), default="quick")
    parser.add_argument("--no-sweep", action="store_true")
    arguments = parser.parse_args()

    versions = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    print(", ".join(f"{name} {value}" for name, value in versions.items()))
    print(f"B{B} T{T} H{H} S{S} D{D} bf16; medians, forward, then forward and backward: replayed as a graph (launched from Python), extra memory")
    inputs = draw(B, T)
    rows = [line("hymo", measure(ours, inputs)), line("sequential, every state kept", measure(sequential, inputs, backward=False))]
    accuracy, first = errors(ours, inputs), first_call_seconds()
    print("errors against float64: " + ", ".join(f"{name} {value:.1e}" for name, value in accuracy.items()))
    print(f"first forward and backward on an empty cache: {first:.1f} s", flush=True)
    if not arguments.no_sweep:
        for length in (512, 1024, 4096, 16_384, 65_536):
            rows.append(line(f"hymo, B{65_536 // length} T{length}", measure(ours, draw(65_536 // length, length))))
        for state, width in ((64, 64), (128, 128), (32, 128), (128, 32)):
            rows.append(line(f"hymo, S{state} D{width}", measure(ours, draw(B, T, state, width))))
    results = {**versions, "shape": {"B": B, "T": T, "H": H, "S": S, "D": D, "dtype": "bfloat16"}, "peer_tuning": arguments.peer}
    results |= {"first_call_seconds": first, "errors": accuracy, "rows": rows}
    save(results)
    gla = peer(arguments.peer)                      # last: it may tune for minutes
    if gla is None:
        print("chunk_gla: not measured (flash-linear-attention is not installed, or --peer none)")
        return
    begin = time.perf_counter()
    rows.append(line(f"chunk_gla ({arguments.peer} tuning)", measure(gla, inputs)))
    print(f"of which its first calls took {time.perf_counter() - begin:.0f} s")
    save(results)


def save(results: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == [FIRST_CALL]:
        first_call()
    elif sys.argv[1:2] == [PEER_SHARE]:
        compile_share(*map(int, sys.argv[2:]))
    else:
        main()
