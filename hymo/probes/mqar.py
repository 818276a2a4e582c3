"""Recall by load and length: multi-query associative recall beyond what was trained."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from hymo.data.synthetic import open_task
from hymo.data.tasks.mqar import Mqar
from hymo.probes.base import LONGEST, Finding, Probe, Subject, probe
from hymo.recipe import Recipe

T, PAIRS = 64, 4            # the published training rows, for a run that was trained on something else
VOCAB = 8192
SOURCE = "synthetic:mqar"


@probe("mqar")
class MqarProbe(Probe):
    """accuracy(T, n) = share of queries whose most probable token is the value, over rows of T tokens with n pairs (task `mqar`).

    From the shortest rows (T, n) of training, the load doubles up to T/4 pairs, then the length doubles at full load, up to 4 times the trained
    length and as far as the vocabulary allows (T < V). Trained as published, that is the published test: (64, 4) (64, 8) (64, 16) (128, 32) (256, 64)
    (512, 128) (1024, 256). Vocabulary, gaps and fillers are those of the run; a run on text is asked in its own vocabulary, of 8,192 at most.
    """

    cells: tuple[tuple[int, int], ...] = Field(default=(), description="(T, pairs) to ask for; empty: from the trained ones on")
    examples: int = Field(default=256, gt=0, description="rows of each (T, pairs); 1,000 in the published test")
    vocab: int | None = Field(default=None, gt=3, description="tokens V; null: the run's own")

    def task(self, recipe: Recipe) -> Mqar:
        """The task as the run knows it, in the vocabulary that is asked for."""
        options = recipe.data.options if recipe.data.source == SOURCE else {"vocab": min(VOCAB, recipe.model.vocab_size)}
        found = open_task("mqar", {**options, **({"vocab": self.vocab} if self.vocab else {})})
        assert isinstance(found, Mqar)
        return found

    def asked(self, recipe: Recipe) -> list[tuple[int, int]]:
        """The (T, pairs) in order."""
        if self.cells:
            return list(self.cells)
        task, longest = self.task(recipe), LONGEST * recipe.train.seq_len
        length, pairs = min(task.cells(recipe.train.seq_len)) if recipe.data.source == SOURCE else (T, PAIRS)
        found = []
        while 4 * pairs <= length:
            found.append((length, pairs))
            pairs *= 2
        while 2 * length <= longest and 2 * length < task.vocab_size:
            length *= 2
            found.append((length, length // 4))
        return found

    def check(self, recipe: Recipe) -> None:
        for length, pairs in self.asked(recipe):
            self.must_fit(recipe, length, self.task(recipe).vocab_size)
            self.task(recipe).check_cell(length, pairs)

    def measure(self, subject: Subject) -> Finding:
        self.check(subject.recipe)
        task, cells = self.task(subject.recipe), self.asked(subject.recipe)
        found = []
        for length, pairs in cells:
            rng = np.random.default_rng([length, pairs])
            tokens, targets = task.draw(rng, self.examples, length, pairs)
            hits, _ = subject.answers(torch.from_numpy(tokens[:, :-1]), torch.from_numpy(targets))
            found.append(hits.double().mean().item())
        labels, values = [f"{length}x{pairs}" for length, pairs in cells], task.vocab_size - task.vocab_size // 2
        return Finding(
            probe=self.name,
            summary={"accuracy": sum(found) / len(found)},
            value="accuracy",
            axes=(("", labels),),
            cells=found,
            setting=f"share of values recalled, tokens x pairs, {self.examples} rows each of a vocabulary of {task.vocab_size:,}; "
            f"guessing among its {values:,} values: {1 / values:.4f}",
            beyond=tuple(label for label, (length, _) in zip(labels, cells, strict=True) if length > subject.recipe.train.seq_len),
        )
