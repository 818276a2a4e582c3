"""The recurrence through flash-linear-attention's kernels (extra `hymo[fla]`), held to the chunked form at the caller's own shapes before use.

Documents travel as cumulative lengths of one long row. The kernels take the decay in fp32 and compute in v's dtype with fp32 states.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hymo.errors import KernelUnavailable
from hymo.ops.linear_attention.chunked import linear_attention_chunked

TOLERANCE = 2e-2        # relative, per tensor: two roundings of bf16 and the order of sums
CHECKED_TOKENS = 256


def unavailable(device: torch.device | str) -> str | None:
    """Why the kernels cannot run on `device`; None when they can."""
    if torch.device(device).type != "cuda":
        return f"flash-linear-attention runs on a CUDA device, but got device={str(device)!r}; use impl=chunked"
    if importlib.util.find_spec("fla") is None:
        return "flash-linear-attention is not installed; pip install 'hymo[fla]', or use impl=chunked"
    return None


def _kernel(per_channel: bool, erase: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    module, name = {
        (False, False): ("simple_gla", "chunk_simple_gla"),
        (True, False): ("gla", "chunk_gla"),
        (False, True): ("gated_delta_rule", "chunk_gated_delta_rule"),
        (True, True): ("kda", "chunk_kda"),
    }[per_channel, erase]
    kernel: Callable[..., tuple[Tensor, Tensor]] = getattr(importlib.import_module(f"fla.ops.{module}"), name)
    return kernel


def _run(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor | None, state: Tensor, starts_BT: Tensor | None) -> tuple[Tensor, Tensor]:
    B, T = q.shape[:2]
    extra: dict[str, Any] = {} if beta is None else {"beta": beta}
    final_of: Tensor | slice = slice(None)
    if starts_BT is not None:
        begins = starts_BT.clone()
        begins[:, 0] = True
        at = begins.flatten().nonzero().flatten()
        first = torch.searchsorted(at, torch.arange(B, device=q.device) * T)            # a row's first document goes on from its state
        fresh = state.new_zeros(len(at), *state.shape[1:])
        carried = torch.where(starts_BT[:, 0, None, None, None], 0.0, state)
        state = fresh.index_copy(0, first, carried)
        extra["cu_seqlens"] = torch.cat([at, at.new_tensor([B * T])])
        final_of = torch.cat([first[1:] - 1, first.new_tensor([len(at) - 1])])
        q, k, v, log_decay = (z.flatten(0, 1)[None] for z in (q, k, v, log_decay))
        if beta is not None:
            extra["beta"] = beta.flatten(0, 1)[None]
    kernel = _kernel(log_decay.ndim == 4, beta is not None)
    o, final = kernel(q=q, k=k, v=v, g=log_decay.float(), scale=1.0, initial_state=state.float(), output_final_state=True, **extra)
    return o.view(B, T, *o.shape[2:]), final[final_of]


@functools.cache
def _check(H: int, K: int, V: int, dtype: torch.dtype, device: torch.device, per_channel: bool, erase: bool) -> None:
    """Outputs, final state and every gradient on random inputs of these widths, two documents a row; raise KernelUnavailable if they differ."""
    generator = torch.Generator(device).manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(1, CHECKED_TOKENS, H, *shape, device=device, generator=generator)

    q, k = (torch.nn.functional.normalize(noise(K), dim=-1) for _ in range(2))
    decay = -torch.nn.functional.softplus(noise(K) if per_channel else noise())
    operands = [q.to(dtype), k.to(dtype), noise(V).to(dtype), decay, *([noise().sigmoid()] if erase else [])]
    state = torch.randn(1, H, K, V, device=device, generator=generator)
    starts = torch.zeros(1, CHECKED_TOKENS, dtype=torch.bool, device=device)
    starts[:, CHECKED_TOKENS // 3] = True
    weight = noise(V)
    results = []
    for form, wide in ((_run, False), (linear_attention_chunked, True)):
        leaves = [(x.double() if wide else x.clone()).requires_grad_() for x in (*operands, state)]
        *given, initial = leaves
        beta = given[4] if erase else None
        log_decay = given[3][..., None].expand(q.shape) if wide and not per_channel else given[3]
        with torch.enable_grad():
            o, final = form(given[0], given[1], given[2], log_decay, beta, initial, starts)
            grads = torch.autograd.grad((o * weight).sum() + final.sum(), leaves)
        results.append([o, final, *grads])
    names = ["o", "state", "dq", "dk", "dv", "ddecay", *(["dbeta"] if erase else []), "dstate"]
    for name, ours, truth in zip(names, *results, strict=True):
        error = ((ours.double() - truth).norm() / truth.norm()).item()
        if not error <= TOLERANCE:
            raise KernelUnavailable(
                f"flash-linear-attention must equal the chunked form to {TOLERANCE} at {H=} {K=} {V=} {dtype}, but got {error=:.1e} in {name}; "
                "use impl=chunked"
            )


def linear_attention_fla(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_decay: Tensor, beta_BTH: Tensor | None, state_BHKV: Tensor, starts_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As the chunked form; `log_decay` keeps its own rank, which picks the kernel."""
    _check(q_BTHK.shape[2], q_BTHK.shape[3], v_BTHV.shape[3], v_BTHV.dtype, v_BTHV.device, log_decay.ndim == 4, beta_BTH is not None)
    return _run(q_BTHK.to(v_BTHV.dtype), k_BTHK.to(v_BTHV.dtype), v_BTHV, log_decay, beta_BTH, state_BHKV, starts_BT)
