"""Bits per byte: the loss that does not depend on the tokenizer."""

from __future__ import annotations

from hymo.probes.base import Finding, Probe, Subject, probe
from hymo.recipe import Recipe


@probe("bits")
class BitsProbe(Probe):
    """bits per byte = nats of the labels that stand for bytes / (ln 2 · those bytes);  loss = nats per label, all labels."""

    def check(self, recipe: Recipe) -> None:
        self.must_be_text(recipe)

    def measure(self, subject: Subject) -> Finding:
        self.check(subject.recipe)
        found = subject.held_out
        assert found.bpb is not None, "text has bytes"
        return Finding(
            probe=self.name,
            summary={"bpb": found.bpb},
            value="bits per byte; nats per token",
            axes=(("", ["bpb", "loss"]),),
            cells=[found.bpb, found.loss],
            setting=f"{found.tokens:,} held-out tokens at the trained length of {subject.recipe.train.seq_len}",
        )
