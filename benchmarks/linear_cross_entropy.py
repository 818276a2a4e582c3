"""Output head and loss at v1.0's size: ours beside materialised logits, Liger where it is installed, and the floor of three matrix products.

    python benchmarks/linear_cross_entropy.py [tokens]

Medians of forward and backward, and peak memory beyond the inputs. Needs a CUDA device.
"""

import importlib.util
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.testing import do_bench

from hymo.ops.linear_cross_entropy import linear_cross_entropy

TOKENS, WIDTH, VOCABULARY, SOFTCAP = int(sys.argv[1]) if len(sys.argv) > 1 else 16_384, 896, 64_256, 15.0


def materialised(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(hidden, weight).float()
    return F.cross_entropy(SOFTCAP * torch.tanh(logits / SOFTCAP), targets, reduction="sum")


def measured(name: str, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(VOCABULARY, WIDTH, device="cuda") * WIDTH**-0.5).requires_grad_()
    targets = torch.randint(VOCABULARY, (TOKENS,), device="cuda")

    def step() -> Tensor:
        hidden.grad = weight.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            total = loss(hidden, weight, targets)
        total.backward()
        return total

    total = step()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak = torch.cuda.max_memory_allocated() - before
    print(f"{name:24} {do_bench(step, warmup=100, rep=500, return_mode='median'):8.2f} ms {peak / 1e9:8.2f} GB   loss {total.item() / TOKENS:.5f}")


def floor() -> None:
    a, w = (torch.randn(n, WIDTH, device="cuda", dtype=torch.bfloat16) for n in (TOKENS, VOCABULARY))
    logits = torch.empty(TOKENS, VOCABULARY, device="cuda", dtype=torch.bfloat16)
    parts = [lambda: torch.mm(a, w.T, out=logits), lambda: logits @ w, lambda: logits.T @ a]
    print(f"{'three matrix products':24} {sum(do_bench(part, return_mode='median') for part in parts):8.2f} ms")


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"{TOKENS} tokens, {WIDTH} -> {VOCABULARY}, bf16 products, fp32 master")
    floor()
    measured("hymo", lambda h, w, t: linear_cross_entropy(h, w, t, softcap=SOFTCAP)[0])
    measured("hymo, plain chunks", lambda h, w, t: linear_cross_entropy(h, w, t, softcap=SOFTCAP, impl="chunked")[0])
    if importlib.util.find_spec("liger_kernel"):
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss(softcap=SOFTCAP, reduction="sum")
        measured("liger", lambda h, w, t: liger(w.to(h.dtype), h, t))
    measured("materialised logits", materialised)
