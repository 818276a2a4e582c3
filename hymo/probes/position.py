"""Loss by position: whether a longer context helps."""

from __future__ import annotations

from hymo.probes.base import Finding, Probe, Subject, probe


@probe("position")
class PositionProbe(Probe):
    """loss(j) = mean nats of the labels whose context inside their own document is 2^j … 2^(j+1)−1 tokens long (hymo/evaluate.py).

    `late_minus_early` compares the longest bucket with the shortest one: the more negative, the more the model makes of its context. The same
    tokens for every model of the same data, so arms compare bucket by bucket.
    """

    def measure(self, subject: Subject) -> Finding:
        found = subject.held_out.loss_by_position
        losses = list(found.values())
        return Finding(
            probe=self.name,
            summary={"late_minus_early": losses[-1] - losses[0]},
            value="nats per token",
            axes=(("context", list(found)),),
            cells=losses,
            setting=f"loss of {subject.held_out.tokens:,} held-out tokens by the length of context in their document, from this many tokens on",
        )
