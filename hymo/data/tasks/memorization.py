"""Memorization: a map from keys to values that only the weights can hold."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from hymo.data.synthetic import IGNORED, Ints, Split, Task, task
from hymo.errors import DataError


@task("memorization")
class Memorization(Task):
    """Memorization of MAD (arXiv 2403.17844), by its published generator:

        x = (k_1 mark k_2 mark … ),   target at the mark after k is f(k), else none;   f a fixed map, the same in every row, held out or not

    Keys are drawn evenly from the first half of the vocabulary, their values are distinct tokens of the second; the last token is the mark.
    The map is drawn from `map_seed`, not from the run's seed: it is the task.
    """

    vocab: int = Field(default=256, ge=3, description="tokens in all")
    length: int = Field(default=32, gt=0, description="tokens in a row, even")
    map_seed: int = Field(default=12345, ge=0, description="seed of the map")

    @property
    def vocab_size(self) -> int:
        return self.vocab

    @property
    def map(self) -> Ints:
        """Value of each key: keys and values shuffled in turn and paired, which at the published seed gives the published map."""
        rng, n = np.random.default_rng(self.map_seed), (self.vocab - 1) // 2
        keys, values = rng.permutation(n), rng.permutation(np.arange(n, self.vocab - 1))
        return values[keys.argsort()]

    def sample(self, rng: np.random.Generator, rows: int, seq_len: int, split: Split) -> tuple[Ints, Ints]:
        if self.length % 2:
            raise DataError(f"a key and its mark are two tokens, but got {self.length=}, which is odd")
        self.must_fit(self.length, seq_len)
        values = self.map
        keys = rng.integers(0, len(values), (rows, self.length // 2))
        tokens = np.full((rows, self.length + 1), self.vocab - 1)
        targets = np.full((rows, self.length), IGNORED)
        tokens[:, :-1:2], targets[:, 1::2] = keys, values[keys]
        return tokens, targets
