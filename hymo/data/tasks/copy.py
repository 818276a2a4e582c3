"""Copy: repeat what was read, after a mark."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from hymo.data.synthetic import IGNORED, Ints, Split, Task, task


@task("copy")
class Copy(Task):
    """w mark w, with n random symbols w: the second w is what counts.

        x = (w_1 … w_n, mark, w_1 … w_n),   target of x_i is x_{i+1} for i > n, else none

    The simplest test of recall at a distance: a model without a memory of n tokens stays at chance, 1/symbols.
    """

    length: int = Field(default=16, gt=0, description="symbols to copy, n; a row holds 2n+1 tokens")
    symbols: int = Field(default=64, gt=1, description="kinds of symbol; the mark is one more")

    @property
    def vocab_size(self) -> int:
        return self.symbols + 1

    def sample(self, rng: np.random.Generator, rows: int, seq_len: int, split: Split) -> tuple[Ints, Ints]:
        self.must_fit(2 * self.length, seq_len)
        word = rng.integers(0, self.symbols, (rows, self.length))
        tokens = np.concatenate([word, np.full((rows, 1), self.symbols), word], axis=1)
        targets = np.full((rows, 2 * self.length), IGNORED)
        targets[:, self.length :] = word
        return tokens, targets
