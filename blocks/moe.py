"""A mixture of SwiGLU experts, with capacity and four ways to balance its load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hymo import Block, BlockConfig, Context, LayerInfo, register
from hymo.errors import RecipeError
from hymo.ops.grouped_linear import ALIGNMENT, GroupedLinear
from hymo.ops.precision import without_autocast
from hymo.ops.swiglu import resolve_impl, swiglu
from hymo.registry import build, get

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig

_BAND = 0.05        # ema_bias leaves an expert alone while its load stays this close to the mean


@register("ffn", "moe")
class Moe(Block):
    """y = sum_{e in top-k} w_e E_e(x) + sum_s S_s(x), every E and S a SwiGLU network (arXiv 1701.06538, 2401.06066).

    p = softmax(W_g x + b) over the experts, in fp32 whatever the autocast; the k largest are selected and w is p there, divided by its sum
    when `renormalize`. x_BTD -> y_BTD.

    Capacity: of one row (sequence), an expert takes max(1, int(capacity_factor * T * k / E)) tokens, the earliest; the others lose that
    expert's share of y and are counted in `moe/drop_frac`. Padding (document -1) takes no capacity and appears in no statistic.

    Balance, once per optimizer step, from counts summed over all ranks, made before drops:

        ema_bias    load <- (1 - a) load + a (share of the step's assignments), a = ema_alpha, uniform at the start;
                    b_e -= bias_step where load_e > 1.05 mean, b_e += bias_step where load_e < 0.95 mean
        sign_bias   b_e += bias_step * sign(mean count - count_e)  (arXiv 2408.15664)
        aux_loss    b is trained, and the loss gains aux_weight * sum_e f_e P_e per row, f_e the share of the row's assignments times E,
                    P_e its mean probability (arXiv 2412.19437); 1 * aux_weight when uniform
        none        b is trained
    """

    class Config(BlockConfig):
        """Experts, routing, capacity and balance."""

        type: Literal["moe"] = "moe"
        n_routed: int = Field(default=16, gt=0, description="routed experts")
        top_k: int = Field(default=2, gt=0, description="routed experts a token uses")
        n_shared: int = Field(default=1, ge=0, le=256, description="experts that every token uses")
        inter_dim: int = Field(default=2304, gt=0, description="hidden width of each expert")
        renormalize: bool = Field(default=True, description="combine weights sum to 1 over the selected experts")
        router_dtype: Literal["fp32", "bf16"] = Field(default="fp32", description="type of the router's product; its softmax is always fp32")
        capacity_factor: float | None = Field(default=1.5, gt=0, description="an expert's room in a row, times an even share; null: no limit")
        eval_capacity: float | None = Field(default=None, gt=0, description="capacity_factor in evaluation and decoding; null: no limit")
        balance: Literal["ema_bias", "sign_bias", "aux_loss", "none"] = Field(default="ema_bias", description="how the load is evened out")
        bias_step: float = Field(default=0.001, gt=0, description="what an optimizer step adds to or takes from a bias (ema_bias, sign_bias)")
        bias_in_weights: bool = Field(default=True, description="false: the bias selects experts, unbiased probabilities combine them")
        ema_alpha: float = Field(default=0.001, gt=0, le=1, description="share of the newest step in the load average (ema_bias)")
        aux_weight: float = Field(default=1e-4, ge=0, description="weight of the balancing loss (aux_loss)")

        def check(self, layer: LayerInfo, model: ModelConfig) -> None:
            if self.top_k > self.n_routed:
                raise RecipeError(f"moe.top_k must be at most n_routed, but got {self.top_k=} and {self.n_routed=}")
            if model.d_model % ALIGNMENT or self.inter_dim % ALIGNMENT:
                raise RecipeError(f"d_model and moe.inter_dim must be multiples of {ALIGNMENT}, but got {model.d_model=} and {self.inter_dim=}")
            if not self.bias_in_weights and self.balance in ("aux_loss", "none"):
                raise RecipeError(f"moe.bias_in_weights must be true where the bias is trained (balance aux_loss or none), but got {self.balance=}")

    config: Config
    load_ema_E: Tensor
    assigned_E: Tensor
    dropped: Tensor

    def __init__(self, config: Config, layer: LayerInfo) -> None:
        super().__init__(config, layer)
        d, e, f = layer.d_model, config.n_routed, config.inter_dim
        self.gate = nn.Linear(d, e)
        self.gate.bias.requires_grad_(config.balance in ("aux_loss", "none"))
        self.w_gate_up = GroupedLinear(e, d, 2 * f)     # as in dense_ffn, one matrix per expert: gate, then up
        self.w_down = GroupedLinear(e, f, d)
        expert = get("ffn", "dense_ffn").Config.model_validate({"type": "dense_ffn", "inter_dim": f})
        self.shared = nn.ModuleList(build("ffn", expert, layer) for _ in range(config.n_shared))
        self.register_buffer("load_ema_E", torch.empty(e))
        # Counts since the last optimizer step: zero whenever a checkpoint is written, so not part of it.
        self.register_buffer("assigned_E", torch.empty(e, dtype=torch.int64), persistent=False)
        self.register_buffer("dropped", torch.empty(1, dtype=torch.int64), persistent=False)

    # -- forward ------------------------------------------------------------------------------------------------------------------
    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        b, t, d = x_BTD.shape
        x_ND = x_BTD.reshape(b * t, d)
        probs_NE, chosen_NK, weights_NK = self._route(x_ND)
        real_BT = None if ctx.documents_BT is None else ctx.documents_BT >= 0
        assigned_BTE = _count(chosen_NK, self.config.n_routed).view(b, t, -1)
        if real_BT is not None:
            assigned_BTE = assigned_BTE * real_BT[..., None]
        kept_NK = self._within_capacity(assigned_BTE, chosen_NK)
        if kept_NK is not None:
            weights_NK = torch.where(kept_NK, weights_NK, 0)
        self._record(assigned_BTE, kept_NK, real_BT, ctx)
        ctx.measure("moe/load", lambda: assigned_BTE / self.config.top_k)       # share of each expert
        if self.config.balance == "aux_loss":
            ctx.losses["moe/aux"] = self._aux_loss(assigned_BTE, probs_NE.view(b, t, -1), real_BT)
        y_ND = self._experts(x_ND, chosen_NK, weights_NK)
        y_BTD = y_ND.view(b, t, d)
        for expert in self.shared:
            y_BTD = y_BTD + expert(x_BTD, ctx)
        return y_BTD

    def _route(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities (N, E), the experts of each token (N, K) and their combine weights (N, K), all fp32 (or wider)."""
        dtype = torch.bfloat16 if self.config.router_dtype == "bf16" else torch.promote_types(self.gate.weight.dtype, torch.float32)
        with without_autocast(x_ND):
            scores_NE = F.linear(x_ND.to(dtype), self.gate.weight.to(dtype))
            scores_NE = scores_NE.to(torch.promote_types(dtype, torch.float32))
            biased_NE = scores_NE + self.gate.bias.to(scores_NE.dtype)
            chosen_NK = biased_NE.topk(self.config.top_k, dim=-1).indices
            probs_NE = torch.softmax(biased_NE if self.config.bias_in_weights else scores_NE, dim=-1)
            weights_NK = probs_NE.gather(-1, chosen_NK)
            if self.config.renormalize:
                weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
        return probs_NE, chosen_NK, weights_NK

    def _within_capacity(self, assigned_BTE: Tensor, chosen_NK: Tensor) -> Tensor | None:
        """Which assignments find room: fewer than `capacity` earlier tokens of the row chose the expert. None when there is no limit."""
        factor = self.config.capacity_factor if self.training else self.config.eval_capacity
        if factor is None:
            return None
        t, e = assigned_BTE.shape[1:]
        capacity = max(1, int(factor * t * self.config.top_k / e))
        chosen_BET = assigned_BTE.mT.contiguous()       # a running sum along the last axis is many times faster on a GPU
        before_BTE = (chosen_BET.cumsum(dim=-1, dtype=torch.int32) - chosen_BET).mT
        return before_BTE.reshape(-1, e).gather(-1, chosen_NK) < capacity

    def _experts(self, x_ND: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
        """Weighted sum of the chosen experts, each token beside the others of its expert. A dropped assignment runs with weight zero, so that
        no shape depends on the routing and the host never waits for the device."""
        k, e = self.config.top_k, self.config.n_routed
        sorted_M, order_M = chosen_NK.flatten().to(torch.int16).sort(stable=True)
        inverse_M = torch.empty_like(order_M).scatter_(0, order_M, torch.arange(len(order_M), device=order_M.device))
        ends_E = torch.searchsorted(sorted_M, torch.arange(e, device=sorted_M.device, dtype=torch.int16), right=True, out_int32=True)
        rows_MD = gather(x_ND, order_M // k, inverse_M.view(-1, k))
        out_MD = self.w_down(swiglu(self.w_gate_up(rows_MD, ends_E)), ends_E)
        out_NKD = gather(out_MD, inverse_M, order_M[:, None]).view(-1, k, x_ND.shape[1])
        return (out_NKD * weights_NK[..., None]).sum(dim=1).to(out_MD.dtype)

    # -- statistics and balance ---------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def _record(self, assigned_BTE: Tensor, kept_NK: Tensor | None, real_BT: Tensor | None, ctx: Context) -> None:
        assigned_E = assigned_BTE.sum(dim=(0, 1))
        lost = torch.zeros_like(self.dropped)
        if kept_NK is not None:
            lost_NK = ~kept_NK if real_BT is None else ~kept_NK & real_BT.view(-1, 1)
            lost += lost_NK.sum()
        ctx.metrics["moe/drop_frac"] = (lost / assigned_E.sum().clamp(min=1)).squeeze()
        ctx.metrics["moe/max_vio"] = max_vio(assigned_E)
        if self.training and not ctx.recomputing:
            self.assigned_E += assigned_E
            self.dropped += lost

    def _aux_loss(self, assigned_BTE: Tensor, probs_BTE: Tensor, real_BT: Tensor | None) -> Tensor:
        if real_BT is None:
            real_BT = assigned_BTE.new_ones(assigned_BTE.shape[:2], dtype=torch.bool)
        length_B1 = real_BT.sum(dim=1, keepdim=True).clamp(min=1)
        share_BE = assigned_BTE.sum(dim=1) / (length_B1 * self.config.top_k) * self.config.n_routed
        mean_prob_BE = (probs_BTE * real_BT[..., None]).sum(dim=1) / length_B1
        return self.config.aux_weight * (share_BE * mean_prob_BE).sum(dim=-1).mean()

    @torch.no_grad()
    def after_optimizer_step(self, reduce_sum: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        counts = reduce_sum(torch.cat([self.assigned_E, self.dropped]))
        assigned_E, dropped = counts[:-1], counts[-1]
        self.assigned_E.zero_()
        self.dropped.zero_()
        total = assigned_E.sum().clamp(min=1)
        if self.config.balance == "ema_bias":
            alpha = self.config.ema_alpha
            self.load_ema_E.mul_(1 - alpha).add_(alpha * assigned_E / total)
            mean = self.load_ema_E.mean()
            high, low = self.load_ema_E > (1 + _BAND) * mean, self.load_ema_E < (1 - _BAND) * mean
            self.gate.bias.add_(self.config.bias_step * (low.float() - high.float()))
        elif self.config.balance == "sign_bias":
            # counts times E against their total: exact in integers, so that an even load leaves the bias alone
            self.gate.bias.add_(self.config.bias_step * torch.sign(assigned_E.sum() - assigned_E * self.config.n_routed))
        return {"moe/drop_frac": dropped / total, "moe/max_vio": max_vio(assigned_E)}

    # -- accounting and initialisation --------------------------------------------------------------------------------------------
    def mixing_flops(self, context: int) -> float:
        return 0.0

    def state_elems(self, context: int) -> int:
        return 0

    def active_fraction(self, parameter: str) -> float:
        return self.config.top_k / self.config.n_routed if parameter.startswith(("w_gate_up.", "w_down.")) else 1.0

    def kernels(self, device: torch.device | str) -> dict[str, str]:
        return {"swiglu": resolve_impl("auto", device)}

    def component(self, parameter: str) -> str | None:
        if parameter.startswith("gate."):
            return None
        return "moe shared" if parameter.startswith("shared.") else "moe routed"

    def init_parameter(self, name: str, weight: Tensor, generator: torch.Generator) -> bool:
        """gate.weight N(0, 0.006^2), gate.bias 0."""
        if name == "gate.weight":
            weight.normal_(0, 0.006, generator=generator)
        elif name == "gate.bias":
            weight.zero_()
        else:
            return False
        return True

    def init_buffers(self) -> None:
        self.load_ema_E.fill_(1 / self.config.n_routed)
        self.assigned_E.zero_()
        self.dropped.zero_()


def max_vio(assigned_E: Tensor) -> Tensor:
    """MaxVio = (max load - mean load) / mean load (arXiv 2408.15664); 0 is perfect balance."""
    mean = assigned_E.float().mean()
    return (assigned_E.max() - mean) / mean.clamp(min=1e-9)


def _count(chosen_NK: Tensor, n_routed: int) -> Tensor:
    """1 where a token chose an expert, (N, E) int32."""
    counts = torch.zeros(chosen_NK.shape[0], n_routed, dtype=torch.int32, device=chosen_NK.device)
    return counts.scatter_(-1, chosen_NK, 1)


def gather(x_ND: Tensor, index_M: Tensor, positions_NK: Tensor) -> Tensor:
    """y_m = x[index_m], whose backward pass is a gather too: `positions` (N, K) names the K rows of y that each row of x went to.

    Plain indexing would scatter-add the gradient: slower, and in an order that changes from run to run.
    """
    y_MD: Tensor = _Gather.apply(x_ND, index_M, positions_NK)       # type: ignore[no-untyped-call]
    return y_MD


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, index_M: Tensor, positions_NK: Tensor) -> Tensor:
        ctx.save_for_backward(positions_NK)
        return x_ND[index_M]

    @staticmethod
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None]:
        (positions_NK,) = ctx.saved_tensors
        return grad_MD[positions_NK].sum(dim=1), None, None
