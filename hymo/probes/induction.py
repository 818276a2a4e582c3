"""Induction: how much a model gains from having read the same text before."""

from __future__ import annotations

import torch
from pydantic import Field

from hymo.probes.base import Finding, Probe, Subject, probe
from hymo.recipe import Recipe


@probe("induction")
class InductionProbe(Probe):
    """gap(S) = loss of x_2 … x_S the first time − the second time, in the row (x_1 … x_S x_1 … x_S), in nats per token.

    x is S held-out tokens of the run. A model that copies from its context gains nearly the whole loss, one without memory of S tokens nothing.
    The summary is the gap at the longest S, half of the trained length.
    """

    segments: int = Field(default=32, gt=0, description="stretches of text for each S")

    def lengths(self, recipe: Recipe) -> list[int]:
        """S: 8, 16, … up to half of the trained length."""
        return [2**j for j in range(3, recipe.train.seq_len.bit_length() - 1)] or [max(2, recipe.train.seq_len // 2)]

    def check(self, recipe: Recipe) -> None:
        self.must_be_text(recipe)

    def measure(self, subject: Subject) -> Finding:
        self.check(subject.recipe)
        gaps = {s: self._gap(subject, s) for s in self.lengths(subject.recipe)}
        return Finding(
            probe=self.name,
            summary={"gap": list(gaps.values())[-1]},
            value="nats per token",
            axes=(("repeated", list(gaps)),),
            cells=list(gaps.values()),
            setting=f"loss that {self.segments} stretches of held-out text lose when they come a second time, by their length in tokens",
        )

    def _gap(self, subject: Subject, s: int) -> float:
        text = subject.stretches(self.segments, s)
        rows = torch.cat([text, text], dim=1)
        _, nats = subject.answers(rows[:, :-1], rows[:, 1:])
        by_place = nats.view(self.segments, 2 * s - 1)
        return (by_place[:, : s - 1].mean() - by_place[:, s:].mean()).item()
