"""Which rule moves which weight: NorMuon for the matrices inside the mixers, AdamW for everything else.

    normuon         every nn.Linear weight inside a layer's mixer, dt_proj's apart; with `experts: normuon` the routed experts' stacks too
    adamw           every other matrix: embedding, head, convolutions, FFNs, shared and routed experts, prediction heads
    adamw_nodecay   vectors and scales: A_log, D, norms, gates' biases, …
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hymo.errors import HymoError
from hymo.model import HyMo
from hymo.recipe.tree import OptimizerConfig
from hymo.train.normuon import NorMuon
from hymo.train.parallel import local

SCALES = ("A_log", "D", "norm", "scale", "bias")    # a parameter that ends in one of these, or has "norm" in its name, is no matrix
APART = ("dt_proj",)                                # matrices of a mixer that set its clock, not its content


@dataclass(frozen=True)
class Groups:
    """Names of the trainable parameters, by the rule that moves them."""

    normuon: list[str] = field(default_factory=list)
    adamw: list[str] = field(default_factory=list)
    adamw_nodecay: list[str] = field(default_factory=list)


def is_scale(name: str, parameter: Tensor) -> bool:
    """True for what weight decay would pull away from its neutral value: vectors, norms, A_log, D, scales, biases."""
    leaf = name.rpartition(".")[2]
    return parameter.ndim < 2 or "norm" in name.lower() or any(leaf == s or leaf.endswith(f"_{s}") for s in SCALES)


def sort_parameters(model: HyMo, config: OptimizerConfig) -> Groups:
    """Put every trainable parameter into exactly one group. Raises HymoError for one that no rule knows."""
    mixers: set[int] = set()
    experts: set[int] = set()
    modules: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.modules.conv._ConvNd):
            modules.add(id(module.weight))
    for layer in map(model.layer, range(len(model.layers))):
        for path, module in layer.mixer.named_modules():
            if isinstance(module, nn.Linear) and path.rpartition(".")[2] not in APART:
                mixers.add(id(module.weight))
        if layer.ffn is not None:
            experts.update(id(p) for name, p in layer.ffn.named_parameters() if p.ndim > 2 and layer.ffn.active_fraction(name) < 1)
    groups = Groups()
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        orthogonal = config.hidden != "adamw" and (id(p) in mixers or (config.experts == "normuon" and id(p) in experts))
        if orthogonal:
            groups.normuon.append(name)
        elif id(p) in modules and p.ndim > 1:
            groups.adamw.append(name)
        elif is_scale(name, p):
            groups.adamw_nodecay.append(name)
        elif p.ndim > 2:
            groups.adamw.append(name)
        else:
            raise HymoError(
                f"a parameter must be a module's weight, a stack of matrices, or named as a scale, but got {name!r} of shape {tuple(p.shape)}; "
                f"hold it in nn.Linear, or end its name in one of {', '.join(SCALES)}"
            )
    return groups


class Optimizers:
    """NorMuon and AdamW as one: the same calls go to both, and learning rates follow the schedule together."""

    def __init__(self, model: HyMo, config: OptimizerConfig) -> None:
        self.names = {id(p): name for name, p in model.named_parameters()}
        found, parameters = sort_parameters(model, config), dict(model.named_parameters())
        self.parts: list[torch.optim.Optimizer] = []
        if found.normuon:
            own = config.normuon
            self.parts.append(NorMuon(
                [{"params": [parameters[n] for n in found.normuon], "name": "normuon", "peak": own.lr}],
                lr=own.lr, scaling=own.scaling, momentum=own.momentum, beta2=own.beta2, nesterov=own.nesterov, ns_steps=own.ns_steps, eps=own.eps,
                weight_decay=own.weight_decay, normalize=config.hidden == "normuon",
            ))
        decayed, free = ([parameters[n] for n in names] for names in (found.adamw, found.adamw_nodecay))
        groups = [
            {"params": decayed, "name": "adamw", "peak": config.adamw.lr, "weight_decay": config.adamw.weight_decay},
            {"params": free, "name": "adamw", "peak": config.adamw.lr, "weight_decay": 0.0},
        ]
        adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=config.adamw.lr, betas=config.adamw.betas, eps=config.adamw.eps, fused=True)
        for group in adamw.param_groups:
            for p in group["params"]:       # now and not at the first step: the memory is taken early, and a checkpoint has where to load into
                adamw.state[p] = {"step": torch.zeros((), device=p.device), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        self.parts.append(adamw)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every parameter that is trained."""
        return (p for part in self.parts for group in part.param_groups for p in group["params"])

    def step(self, multiplier: float, bad: Tensor | None = None) -> dict[str, float]:
        """One update at `multiplier` times the peak learning rates, which are returned by name. A device flag `bad` ≠ 0 makes it a no-op."""
        rates: dict[str, float] = {}
        for part in self.parts:
            for group in part.param_groups:
                rates[f"lr/{group['name']}"] = group["lr"] = group["peak"] * multiplier
            setattr(part, "found_inf", bad)     # noqa: B010  # the protocol of torch's fused optimizers, which their types do not know
            setattr(part, "grad_scale", None)   # noqa: B010
            part.step()
        return rates

    def zero_grad(self) -> None:
        """Let the gradients go."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, as `<parameter>/<quantity>`: for a checkpoint to read from or load into."""
        found: dict[str, Tensor] = {}
        for part in self.parts:
            for p, state in part.state.items():
                found.update({f"{self.names[id(p)]}/{key}": value for key, value in state.items()})
        return found


def gradient_squares(parameters: list[nn.Parameter]) -> Tensor:
    """‖g‖² of this rank's part of all gradients together."""
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).square().sum()


def clip_gradients(parameters: list[nn.Parameter], norm: Tensor, limit: float) -> None:
    """g ← g·min(1, limit/norm), in place; a `limit` of 0 leaves the gradients alone."""
    if limit:
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
