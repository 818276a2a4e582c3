"""Selective copying: repeat what was read, without the blanks in between."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from hymo.data.synthetic import IGNORED, Ints, Split, Task, task
from hymo.errors import DataError


@task("selective_copying")
class SelectiveCopying(Task):
    """Selective copying of MAD (arXiv 2403.17844), by its published generator:

        x = (w_1 … w_n with length−2n−1 blanks strewn in, mark, blank × n),   target at the i-th blank after the mark is w_i, else none

    Each blank comes before one of the w_i, drawn evenly, so the last w stands right before the mark. Vocabulary: symbols, the blank, the mark.
    """

    vocab: int = Field(default=16, ge=3, description="tokens in all")
    length: int = Field(default=256, gt=0, description="tokens in a row")
    num_tokens_to_copy: int = Field(default=16, gt=0, description="symbols n to copy")

    @property
    def vocab_size(self) -> int:
        return self.vocab

    def sample(self, rng: np.random.Generator, rows: int, seq_len: int, split: Split) -> tuple[Ints, Ints]:
        n, blank, mark = self.num_tokens_to_copy, self.vocab - 2, self.vocab - 1
        blanks = self.length - 2 * n - 1
        if blanks <= 0:
            raise DataError(f"a row must be longer than 2 num_tokens_to_copy + 1, but got {self.length=} and {self.num_tokens_to_copy=}")
        self.must_fit(self.length, seq_len)
        words = rng.integers(0, blank, (rows, n))
        before = np.sort(rng.integers(0, n, (rows, blanks)), axis=1)        # the symbol that each blank comes before
        ahead = (before[:, None, :] <= np.arange(n)[:, None]).sum(axis=2)   # blanks ahead of each symbol
        tokens = np.full((rows, self.length + 1), blank)
        np.put_along_axis(tokens, ahead + np.arange(n), words, axis=1)
        tokens[:, n + blanks] = mark
        targets = np.full((rows, self.length), IGNORED)
        targets[:, -n:] = words
        return tokens, targets
