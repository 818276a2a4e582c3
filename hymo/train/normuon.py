"""NorMuon: orthogonalised momentum whose rows (output neurons) are brought to one scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hymo.train.orthogonal import arithmetic, newton_schulz, newton_schulz_rows, squares
from hymo.train.parallel import local

STACK = 64 * 1024**2    # numbers that one stack of matrices may hold: bounds the scratch memory, and fills any device


def shape_scale(scaling: Literal["rms_norm", "spectral"], rows: int, columns: int) -> float:
    """`rms_norm`: 0.2·√max(rows, columns), the update's root mean square is about 0.2·lr, AdamW's own; `spectral`: √(rows/columns)."""
    return 0.2 * math.sqrt(max(rows, columns)) if scaling == "rms_norm" else math.sqrt(rows / columns)


class NorMuon(torch.optim.Optimizer):
    """NorMuon (arXiv 2510.05491) on matrices, rows = outputs, in `nn.Linear`'s layout; more axes in front are a stack of them (experts).

        M ← μM + (1−μ)G               O = NewtonSchulz(M)        (Nesterov: of μM + (1−μ)G once more)
        v ← β₂v + (1−β₂) mean_columns(O²)
        Ô = O / (√v + ε)              W ← (1 − lr·λ)W − lr·scale·(‖O‖_F / ‖Ô‖_F)·Ô

    v is a row's second moment, one number a row; no bias correction, since the restored norm cancels any common factor. `normalize=False` leaves
    the second and third line out: Muon. The decay uses the scheduled lr itself, without the shape scale.

    Matrices of one shape are stacked and take one Newton–Schulz, in bf16 on a GPU and fp32 on a CPU. Under FSDP2 (rows sharded) every rank
    orthogonalises its share of whole matrices, so N ranks do what one does; a stack that is sharded over its first axis is whole where it lies.
    `found_inf`, a device flag as `torch.optim.AdamW` has it, turns the whole step into a no-op without asking the host.
    """

    def __init__(self, params: Iterable[Any], lr: float, scaling: Literal["rms_norm", "spectral"], momentum: float = 0.95, beta2: float = 0.95,
                 nesterov: bool = False, ns_steps: int = 5, eps: float = 1e-8, weight_decay: float = 0.0, normalize: bool = True) -> None:
        super().__init__(params, {
            "lr": lr, "scaling": scaling, "momentum": momentum, "beta2": beta2, "nesterov": nesterov, "ns_steps": ns_steps, "eps": eps,
            "weight_decay": weight_decay, "normalize": normalize,
        })
        self.found_inf: Tensor | None = None
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim < 2:
                    raise ValueError(f"NorMuon takes matrices and stacks of matrices, but got a parameter of {p.shape=}")
                self.state[p]["momentum"] = torch.zeros_like(p)
                if group["normalize"]:
                    self.state[p]["second_moment"] = torch.zeros_like(p[..., :1])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for matrices in stacks(p for p in group["params"] if p.grad is not None):
                self._update(matrices, group)

    def _update(self, params: list[nn.Parameter], group: dict[str, Any]) -> None:
        weights = [local(p) for p in params]
        momenta = [local(self.state[p]["momentum"]) for p in params]
        rows, columns = params[0].shape[-2:]
        ranks = row_group(params[0])
        skip = self.found_inf.bool() if self.found_inf is not None else torch.zeros((), dtype=torch.bool, device=weights[0].device)

        gradient = flat([local(p.grad) for p in params if p.grad is not None])
        before = flat(momenta)
        momentum = torch.where(skip, before, before.lerp(gradient, 1 - group["momentum"]))
        scatter(momenta, momentum)
        direction = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum

        dtype = arithmetic(direction.device)
        if ranks is None:
            update = newton_schulz(direction, group["ns_steps"], dtype).float()
        else:
            update = newton_schulz_rows(direction, rows, group["ns_steps"], dtype, ranks).float()
        if group["normalize"]:
            moments = [local(self.state[p]["second_moment"]) for p in params]
            before = flat(moments)
            second = torch.where(skip, before, before.lerp(update.square().mean(-1, keepdim=True), 1 - group["beta2"]))
            scatter(moments, second)
            normalized = update / (second.sqrt() + group["eps"])
            norms = torch.stack([squares(update), squares(normalized)])
            if ranks is not None:
                dist.all_reduce(norms, group=ranks)
            restore = (norms[0] / norms[1].clamp_min(torch.finfo(norms.dtype).tiny)).sqrt()
            update = normalized * restore[:, None, None]

        lr, decay = group["lr"], group["weight_decay"]
        if decay:
            torch._foreach_mul_(weights, torch.where(skip, 1.0, 1.0 - lr * decay))
        update = torch.where(skip, 0.0, update * (-lr * shape_scale(group["scaling"], rows, columns)))
        torch._foreach_add_(weights, pieces(weights, update))


def stacks(params: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters of one shape together, in order, at most STACK numbers at once."""
    by_shape: dict[torch.Size, list[nn.Parameter]] = {}
    for p in params:
        by_shape.setdefault(p.shape, []).append(p)
    for shape, found in by_shape.items():
        size = max(1, STACK // shape.numel())
        for i in range(0, len(found), size):
            yield found[i : i + size]


def flat(tensors: list[Tensor]) -> Tensor:
    """(K, M, N): all the matrices of the tensors (…, M, N), in order."""
    return torch.cat([t.reshape(-1, *t.shape[-2:]) for t in tensors])


def pieces(like: list[Tensor], stacked: Tensor) -> list[Tensor]:
    """`flat` undone: views of the stack, one for each tensor of `like`."""
    parts = torch.split(stacked, [t.shape[:-2].numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def scatter(into: list[Tensor], stacked: Tensor) -> None:
    """Copy the stack's pieces to the tensors they came from."""
    torch._foreach_copy_(into, pieces(into, stacked))


def row_group(p: nn.Parameter) -> dist.ProcessGroup | None:
    """The ranks that share this matrix's rows; None when every matrix lies whole on its rank."""
    placements = getattr(p, "placements", None)     # of a DTensor; importing DTensor to ask costs a second
    if placements is None:
        return None
    if len(placements) != 1 or not placements[0].is_shard(0):
        raise ValueError(f"NorMuon takes parameters that FSDP2 sharded over their first axis, but got {placements=}")
    group: dist.ProcessGroup = p.device_mesh.get_group()  # type: ignore[attr-defined]
    return group if p.ndim == 2 and group.size() > 1 else None
