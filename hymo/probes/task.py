"""Accuracy on the held-out rows of the synthetic task that a run was trained on."""

from __future__ import annotations

import torch
from pydantic import Field

from hymo.data.batch import IGNORED
from hymo.errors import ProbeError
from hymo.probes.base import Finding, Probe, Subject, is_task, probe
from hymo.recipe import Recipe


@probe("task")
class TaskProbe(Probe):
    """accuracy = share of what held-out rows ask for that is the model's most probable token; also by place in the row, in log2 buckets.

    For the MAD tasks this is the published metric: training asks for every next token, held-out rows for the recalled ones.
    """

    examples: int = Field(default=1280, gt=0, description="held-out rows, as many as the published test; fewer when eval.tokens holds fewer")

    def check(self, recipe: Recipe) -> None:
        if not is_task(recipe):
            raise ProbeError(f"probe {self.name!r} needs a run on a synthetic task, but got data.source={recipe.data.source}; take 'needle'")

    def measure(self, subject: Subject) -> Finding:
        self.check(subject.recipe)
        batches = list(subject.data.validation(64))
        inputs, labels = (torch.cat(rows)[: self.examples] for rows in ([b.inputs for b in batches], [b.labels() for b in batches]))
        hits, _ = subject.answers(inputs, labels)
        bucket = (labels != IGNORED).nonzero()[:, 1].add(1).log2().floor().int()
        found = {2**j: hits[bucket == j].double().mean().item() for j in torch.unique(bucket).tolist()}
        return Finding(
            probe=self.name,
            summary={"accuracy": hits.double().mean().item()},
            value="accuracy",
            axes=(("position", list(found)),),
            cells=list(found.values()),
            setting=f"share of what {len(labels):,} held-out rows of {subject.recipe.data.source} ask for, from this position of the row on",
        )
