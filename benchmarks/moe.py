"""The routed experts at v1.0's size: ours beside a Python loop over experts and dense products of equal FLOPs.

    python benchmarks/moe.py [tokens]

Medians of forward and of forward and backward, bf16 autocast over fp32 masters. Needs a CUDA device.
"""

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn
from triton.testing import do_bench

from hymo import Context, LayerInfo
from hymo.init import initialise
from hymo.recipe import load_recipe
from hymo.registry import build, get

TOKENS, LENGTH = int(sys.argv[1]) if len(sys.argv) > 1 else 16_384, 4096


def moe(**settings: object) -> nn.Module:
    model = load_recipe("v1_0").model
    layer = LayerInfo(0, "M", 0, model)
    with torch.device("meta"):
        block = build("ffn", get("ffn", "moe").Config.model_validate({"type": "moe", "n_shared": 0, **settings}), layer)
    block.to_empty(device="cuda")
    initialise(block, 0)
    return block


class Dense(nn.Module):
    """SwiGLU of top_k times the width: the same FLOPs, no routing."""

    def __init__(self) -> None:
        super().__init__()
        self.w_gate_up, self.w_down = nn.Linear(896, 4 * 2304, bias=False), nn.Linear(2 * 2304, 896, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        gate, up = self.w_gate_up(x).chunk(2, dim=-1)
        return self.w_down(F.silu(gate) * up)


class Loop(nn.Module):
    """The same experts, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.moe = moe(capacity_factor=None)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        x_ND = x.flatten(0, 1)
        _, chosen, weights = self.moe._route(x_ND)
        y = torch.zeros_like(x_ND)
        for e in range(16):
            token, rank = (chosen == e).nonzero(as_tuple=True)
            gate, up = F.linear(x_ND[token], self.moe.w_gate_up.weight[e]).chunk(2, dim=-1)
            y.index_add_(0, token, (F.linear(F.silu(gate) * up, self.moe.w_down.weight[e]) * weights[token, rank, None]).to(y.dtype))
        return y.view(x.shape)


def measured(name: str, module: nn.Module, compile: bool = False) -> None:
    module.cuda().train()
    call: Callable[..., Tensor] = torch.compile(module, fullgraph=True) if compile else module
    x = torch.randn(TOKENS // LENGTH, LENGTH, 896, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn_like(x)

    def forward() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return call(x, Context.for_tokens((x.shape[0], x.shape[1]), "cuda"))

    def both() -> None:
        x.grad = None
        module.zero_grad(set_to_none=True)
        forward().backward(weight)

    both()
    with torch.no_grad():
        ahead = do_bench(forward, return_mode="median")
    print(f"{name:36} {ahead:8.2f} ms {do_bench(both, return_mode='median'):8.2f} ms", flush=True)


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"{TOKENS} tokens in rows of {LENGTH}, 16 experts, top 2; forward, forward and backward")
    for compile in (False, True):
        suffix = ", compiled" if compile else ""
        measured("dense, equal FLOPs" + suffix, Dense(), compile)
        measured("hymo, dropless" + suffix, moe(capacity_factor=None), compile)
        measured("hymo, capacity 1.5" + suffix, moe(), compile)
    measured("loop over experts", Loop())
