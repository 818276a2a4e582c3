"""Needle in a haystack: one fact, buried in text, asked for at the end."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from hymo.data.batch import IGNORED
from hymo.errors import ProbeError
from hymo.probes.base import Finding, Probe, Subject, probe
from hymo.recipe import Recipe


@probe("needle")
class NeedleProbe(Probe):
    """Rows (h_1 … h_p  K v  h_{p+1} … h_m  K), asked for v at the end:

        h   m = L − 2|K| − 1 held-out tokens of the run, so that rows have L tokens;   p = depth · m
        K   a key of `key_tokens` tokens and v a value of one, drawn evenly, and anew for each row, from the tokens that stand for text

    accuracy = share of rows whose most probable token is v; gain = nats of v when another needle lies there − nats of v, which shows a memory long
    before v is the first choice. By depth and by length L, the trained length and beyond. The rows are the same for every model of the same data.
    """

    depths: tuple[int, ...] = Field(default=(0, 25, 50, 75, 100), min_length=1, description="place of the needle, per cent of the text before it")
    factors: tuple[float, ...] = Field(default=(0.5, 1, 2), min_length=1, description="row lengths, times the trained length")
    key_tokens: int = Field(default=4, gt=0, description="tokens of the key")
    rows: int = Field(default=32, gt=0, description="rows for each depth and length")

    def lengths(self, recipe: Recipe) -> list[int]:
        """L, in tokens."""
        return [int(factor * recipe.train.seq_len) for factor in self.factors]

    def check(self, recipe: Recipe) -> None:
        self.must_be_text(recipe)
        if any(not 0 <= depth <= 100 for depth in self.depths):
            raise ProbeError(f"probe 'needle' must have depths of 0 to 100 per cent, but got {self.depths}")
        for length in self.lengths(recipe):
            self.must_fit(recipe, length)
            if length < 4 * (self.key_tokens + 1):
                raise ProbeError(
                    f"probe 'needle' needs rows of {4 * (self.key_tokens + 1)} tokens at least for a key of {self.key_tokens}, but got {length}; "
                    "raise needle.factors, or lower needle.key_tokens"
                )

    def measure(self, subject: Subject) -> Finding:
        self.check(subject.recipe)
        lengths = self.lengths(subject.recipe)
        hits, gains = zip(*(self._cell(subject, depth, length) for depth in self.depths for length in lengths), strict=True)
        return Finding(
            probe=self.name,
            summary={"accuracy": sum(hits) / len(hits), "gain": sum(gains) / len(gains)},
            value="nats gained",
            axes=(("depth", self.depths), ("length", lengths)),
            cells=list(gains),
            setting=f"nats of a value that its needle saves, by depth (%) and row length (tokens); {self.rows} rows, keys of {self.key_tokens}",
            beyond=tuple(length for length in lengths if length > subject.recipe.train.seq_len),
        )

    def _cell(self, subject: Subject, depth: int, length: int) -> tuple[float, float]:
        row, other = (self.hidden(subject, depth, length, decoy) for decoy in (False, True))
        targets = torch.full_like(row[0], IGNORED)
        targets[:, -1] = row[1]
        hits, with_it = subject.answers(row[0], targets)
        _, without = subject.answers(other[0], targets)
        return hits.double().mean().item(), (without - with_it).mean().item()

    def hidden(self, subject: Subject, depth: int, length: int, decoy: bool) -> tuple[Tensor, Tensor]:
        """Rows (rows, L) and the value that each is asked for; with `decoy` another needle lies in its place."""
        size = length - 2 * self.key_tokens - 1
        haystack, words = subject.stretches(self.rows, size), subject.words()
        generator = torch.Generator().manual_seed(length)
        needle, lie = (words[torch.randint(len(words), (self.rows, self.key_tokens + 1), generator=generator)] for _ in range(2))
        at = round(depth / 100 * size)
        parts = [haystack[:, :at], lie if decoy else needle, haystack[:, at:], needle[:, :-1]]
        return torch.cat(parts, dim=1), needle[:, -1]
