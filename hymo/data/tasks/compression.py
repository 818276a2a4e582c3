"""Compression: a row squeezed into one vector, and read back from it."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from hymo.data.synthetic import IGNORED, Ints, Split, Task, task


@task("compression")
class Compression(Task):
    """Compression of MAD (arXiv 2403.17844): random tokens and a compression mark, all of which must be read back from the hidden state at the mark.

        x = (w_1 … w_{n−1} mark  mark × n),   target at position n+j is x_j,   j = 0 … n−1, else none

    The first n tokens, and that the mark itself is asked for, are the published generator's. The n marks after them are where an auto-encoder
    writes its answer: the stack must end in a layer that forgets everything but the hidden state at position n−1, which the `autoencoder` mixer
    does (its `length` is n). Without one this would be copying.
    """

    vocab: int = Field(default=16, ge=2, description="tokens in all, the mark included")
    length: int = Field(default=32, gt=1, description="tokens n to compress, the mark included")

    @property
    def vocab_size(self) -> int:
        return self.vocab

    def sample(self, rng: np.random.Generator, rows: int, seq_len: int, split: Split) -> tuple[Ints, Ints]:
        n = self.length
        self.must_fit(2 * n, seq_len)
        tokens = np.full((rows, 2 * n + 1), self.vocab - 1)
        tokens[:, : n - 1] = rng.integers(0, self.vocab - 1, (rows, n - 1))
        targets = np.full((rows, 2 * n), IGNORED)
        targets[:, n:] = tokens[:, :n]
        return tokens, targets
