"""Loss beyond the trained length."""

from __future__ import annotations

from pydantic import Field

from hymo.data import open_data
from hymo.errors import ProbeError
from hymo.evaluate import evaluate
from hymo.probes.base import Finding, Probe, Subject, probe
from hymo.recipe import Recipe


@probe("length")
class LengthProbe(Probe):
    """loss(f) = nats per label of the same held-out tokens in rows of f times the trained length.

    Longer rows cut fewer documents in two: a model that generalises gains a little; one that does not loses much.
    """

    factors: tuple[int, ...] = Field(default=(1, 2, 4), min_length=1, description="times the trained length")

    def check(self, recipe: Recipe) -> None:
        self.must_be_text(recipe)
        for factor in self.factors:
            self.must_fit(recipe, factor * recipe.train.seq_len)

    def measure(self, subject: Subject) -> Finding:
        self.check(subject.recipe)
        losses = {factor: self._loss(subject, factor) for factor in self.factors}
        return Finding(
            probe=self.name,
            summary={f"loss_{factor}x": loss for factor, loss in losses.items()},
            value="nats per token",
            axes=(("length", [factor * subject.recipe.train.seq_len for factor in losses]),),
            cells=list(losses.values()),
            setting=f"loss of the held-out tokens in rows of {' '.join(f'{factor}x' for factor in losses)} the trained length",
            beyond=tuple(factor * subject.recipe.train.seq_len for factor in losses if factor > 1),
        )

    def _loss(self, subject: Subject, factor: int) -> float:
        if factor == 1:
            return subject.held_out.loss
        longer = at_times_the_length(subject.recipe, factor)
        found = evaluate(subject.model, open_data(longer), longer)
        if not found.tokens:
            raise ProbeError(f"rows of {longer.train.seq_len} tokens need as many held-out tokens, but the run's data holds fewer; give more text")
        return found.loss


def at_times_the_length(recipe: Recipe, factor: int) -> Recipe:
    """The recipe as it would read rows of `factor` times its length: for evaluation, nothing is trained at it."""
    length = factor * recipe.train.seq_len
    train = recipe.train.model_copy(update={"seq_len": length, "tokens_per_step": length})
    return recipe.model_copy(update={"train": train})
