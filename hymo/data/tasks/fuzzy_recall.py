"""Fuzzy recall: keys and values of several tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from hymo.data.synthetic import IGNORED, Ints, Split, Task, task
from hymo.errors import DataError

Motif = tuple[int, ...]


@task("fuzzy_recall")
class FuzzyRecall(Task):
    """Fuzzy in-context recall of MAD (arXiv 2403.17844), by its published generator:

        x = (pad … pad  K_1 V_1 K_2 V_2 … K* V*),   K and V motifs of 1 … k_motif and 1 … v_motif different tokens,   K* V* shown once before

    A motif's size is drawn first, then one of all its arrangements. Held-out keys always have the full size. With `multi_query` every value whose
    key was shown before is asked for, else only V*, which a copy mark announces. Training asks for the next token everywhere; held-out rows ask for
    the recalled values alone. Vocabulary: keys, values, the pad, then the copy mark (single query).

    The place of K* V* is drawn from all but the last tokens, and as in the published generator the row may be full before it is reached: two or
    three rows in a hundred then ask for what was never shown.
    """

    vocab: int = Field(default=16, gt=0, description="tokens in all")
    length: int = Field(default=128, gt=0, description="tokens in a row")
    k_motif: int = Field(default=3, gt=0, description="largest key, tokens")
    v_motif: int = Field(default=3, gt=0, description="largest value, tokens")
    multi_query: bool = Field(default=True, description="ask for every value that can be known; false: for the last one, after a mark")

    @property
    def vocab_size(self) -> int:
        return self.vocab

    def sample(self, rng: np.random.Generator, rows: int, seq_len: int, split: Split) -> tuple[Ints, Ints]:
        usable = self.vocab - (1 if self.multi_query else 2)
        if usable // 2 < self.k_motif or usable - usable // 2 < self.v_motif:
            raise DataError(f"a motif needs as many tokens to draw from, but got {self.vocab=} with {self.k_motif=}, {self.v_motif=}; raise vocab")
        if self.length <= 2 * (self.k_motif + self.v_motif):
            raise DataError(f"a row must hold two of the largest pairs, but got {self.length=} with {self.k_motif=}, {self.v_motif=}; raise length")
        self.must_fit(self.length, seq_len)
        most = self.length // 2     # pairs in a row, the last one included
        sizes = rng.integers(1, self.k_motif + 1, (rows, most)) if split == "train" else np.full((rows, most), self.k_motif)
        keys = _motifs(rng, 0, usable // 2, self.k_motif, sizes)
        values = _motifs(rng, usable // 2, usable, self.v_motif, rng.integers(1, self.v_motif + 1, (rows, most)))
        drawn = [self._row(rng, usable, iter(zip(*pairs, strict=True))) for pairs in zip(keys, values, strict=True)]
        tokens, labels = (np.array(part) for part in zip(*drawn, strict=True))
        return tokens, tokens[:, 1:] if split == "train" else labels[:, 1:]

    def _row(self, rng: np.random.Generator, usable: int, pairs: Iterator[tuple[Motif, Motif]]) -> tuple[list[int], list[int]]:
        last_key, last_value = next(pairs)
        probe = len(last_key) + len(last_value)
        place, shown = rng.integers(0, self.length - 2 * probe), False
        values = {last_key: last_value}
        seen: set[Motif] = set()
        tokens: list[int] = []
        labels: list[int] = []
        while len(tokens) < self.length - probe - (self.k_motif + self.v_motif):
            k, v = (last_key, last_value) if len(tokens) >= place and not shown else next(pairs)
            v = values.setdefault(k, v)
            tokens += k + v
            labels += (IGNORED,) * len(k) + (v if k in seen and self.multi_query else (IGNORED,) * len(v))
            seen.add(k)
            shown = last_key in seen
        if not self.multi_query:
            tokens, labels = [*tokens, self.vocab - 1], [*labels, IGNORED]
        tokens += last_key + last_value
        labels += (IGNORED,) * len(last_key) + last_value
        missing = self.length + 1 - len(tokens)
        return [usable] * missing + tokens, [IGNORED] * missing + labels


def _motifs(rng: np.random.Generator, low: int, high: int, most: int, sizes: Ints) -> list[list[Motif]]:
    """A motif of each size, all its arrangements alike: `most` different tokens in any order, cut to the size."""
    drawn = low + rng.random((*sizes.shape, high - low)).argsort(axis=-1)[..., :most]
    return [[tuple(motif[:size]) for motif, size in zip(*row, strict=True)] for row in zip(drawn.tolist(), sizes.tolist(), strict=True)]
