"""How the next token is chosen from the logits.

    p = softmax(logits / temperature), cut to the smallest set of most probable tokens whose probability reaches top_p  (arXiv 1904.09751);
    temperature 0 is the limit: the most probable token.

The token is the one at which the cumulative probability, most probable first, passes a number u that is uniform in [0, 1). Every row draws its u
from a generator of its own, seeded by (seed, row), on the CPU: what a prompt is answered depends neither on its neighbours nor on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hymo.errors import HymoError
from hymo.init import generator_for


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; top_p 1 keeps the whole vocabulary."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise HymoError(f"temperature must be a number >= 0, but got {self.temperature}; 0 is greedy")
        if not 0 < self.top_p <= 1:
            raise HymoError(f"top_p must be above 0 and at most 1, but got {self.top_p}; 1 keeps every token")

    def uniforms(self, rows: int, tokens: int) -> Tensor:
        """One number in [0, 1) for each row and token to come, (rows, tokens) float64."""
        return torch.stack([torch.rand(tokens, generator=generator_for(self.seed, f"row {row}"), dtype=torch.float64) for row in range(rows)])

    def choose(self, logits_BW: Tensor, u_B: Tensor) -> Tensor:
        """The next token of each row, (B) int64. Tokens of equal probability are taken in the order of their numbers."""
        if self.temperature == 0:
            return logits_BW.argmax(dim=-1)
        scaled_BW = logits_BW.double() - logits_BW.max(dim=-1, keepdim=True).values.double()
        probs_BW, tokens_BW = torch.softmax(scaled_BW / self.temperature, dim=-1).sort(dim=-1, descending=True, stable=True)
        before_BW = probs_BW.cumsum(dim=-1) - probs_BW
        kept_BW = torch.where(before_BW < self.top_p, probs_BW, 0)     # the most probable token is always kept: nothing is before it
        reached_BW = kept_BW.cumsum(dim=-1)
        index_B1 = (reached_BW <= u_B[:, None] * reached_BW[:, -1:]).sum(dim=-1, keepdim=True)
        return tokens_BW.gather(-1, index_B1.clamp(max=tokens_BW.shape[-1] - 1)).squeeze(-1)
