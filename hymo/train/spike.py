"""What a loss spike is: a loss that stands out from those of the steps just before it.

    spike  ⟺  ℓ − μ > k·s        μ, s: mean and sample standard deviation of the last W good losses

The rule of OLMo-core's SkipStepOptimizer (k = 6, W = 128), except that a spike does not widen its own window. It says nothing before W/2 losses are
known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class SpikeWatch:
    """Keeps the last `window` good losses on the device, the newest at the end, and asks nothing of the host."""

    def __init__(self, sigma: float, window: int, device: torch.device) -> None:
        self.sigma = sigma
        self.recent = torch.full((window,), torch.nan, dtype=torch.float64, device=device)

    def __call__(self, loss: Tensor) -> Tensor:
        """True, on the device, when a finite `loss` is a spike."""
        known = ~self.recent.isnan()
        count = known.sum()
        mean = self.recent.nan_to_num().sum() / count.clamp(min=1)
        deviation = ((self.recent - mean).square().nan_to_num().sum() / (count - 1).clamp(min=1)).sqrt()
        return (2 * count >= max(4, len(self.recent))) & loss.isfinite() & (loss - mean > self.sigma * deviation)

    def remember(self, loss: Tensor, bad: Tensor) -> None:
        """Take in the loss of a step that was not `bad`."""
        self.recent = torch.where(bad.bool(), self.recent, torch.cat([self.recent[1:], loss.double().view(1)]))

    def refill(self, good: Sequence[float]) -> None:
        """The window as it was after these good losses: what a resumed run goes on with."""
        self.recent.fill_(torch.nan)
        last = good[-len(self.recent):]
        if last:
            self.recent[-len(last):] = torch.tensor(last, dtype=torch.float64, device=self.recent.device)
