"""MQAR: many key-value pairs, every key asked for once, at gaps that follow a power law."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from hymo.data.synthetic import IGNORED, Ints, Split, Task, task
from hymo.errors import DataError


@task("mqar")
class Mqar(Task):
    """Multi-query associative recall, in zoology's format (arXiv 2312.04927):

        x = (k_1 v_1 … k_n v_n  s_0 s_1 … s_{m−1}),   m = (T − 2n)/2 slots of two tokens;   each k_i opens a slot of its own, s_g = (k_i, ·)
        target at the query k_i is v_i, and nothing elsewhere;   slots are drawn without replacement with p(g) ∝ a (g+1)^(a−1)

    Keys are distinct tokens of 1 … V/2−1, values distinct tokens of V/2 … V−1; a = 1 spreads the queries evenly, a = 0.01 keeps most of them near.
    What is left over is filled with tokens drawn from the whole vocabulary, or with 0. The two are not comparable: published figures use either.

    T is train.seq_len unless `segments` mixes several (T, n): a block of rows is of one segment, drawn in proportion to its weight.
    Raises DataError unless T is even, T < V and 4n <= T.
    """

    vocab: int = Field(default=8192, gt=3, description="tokens V; above a thousand for architectures to differ")
    num_kv_pairs: int = Field(default=4, gt=0, description="pairs n in a row")
    power_a: float = Field(default=0.01, gt=0, description="exponent a of the gaps; 1 is uniform")
    random_non_queries: bool = Field(default=True, description="fill with tokens of the whole vocabulary; false: with 0")
    segments: tuple[tuple[int, int, float], ...] = Field(default=(), description="(T, n, weight) to mix; empty: train.seq_len and num_kv_pairs")

    @property
    def vocab_size(self) -> int:
        return self.vocab

    def cells(self, seq_len: int) -> list[tuple[int, int]]:
        """The (T, n) that rows may have."""
        return [(length, pairs) for length, pairs, _ in self.segments] or [(seq_len, self.num_kv_pairs)]

    def sample(self, rng: np.random.Generator, rows: int, seq_len: int, split: Split) -> tuple[Ints, Ints]:
        cells = self.cells(seq_len)
        for length, pairs in cells:
            self.check_cell(length, pairs)
            self.must_fit(length, seq_len)
        weights = np.array([weight for _, _, weight in self.segments] or [1.0])
        if (weights < 0).any() or not weights.sum():
            raise DataError(f"the weights of mqar.segments must be positive, but got {weights.tolist()}; give each (T, n) its share of the rows")
        return self.draw(rng, rows, *cells[rng.choice(len(cells), p=weights / weights.sum())])

    def draw(self, rng: np.random.Generator, rows: int, length: int, pairs: int) -> tuple[Ints, Ints]:
        """Rows of one (T, n)."""
        context, slots = 2 * pairs, (length - 2 * pairs) // 2
        keys = 1 + _distinct(rng, rows, self.vocab // 2 - 1, pairs)
        values = self.vocab // 2 + _distinct(rng, rows, self.vocab - self.vocab // 2, pairs)
        query = context + 2 * self._gaps(rng, rows, slots, pairs)
        tokens = np.zeros((rows, length + 1), np.int64)
        targets = np.full((rows, length), IGNORED)
        tokens[:, 0:context:2], tokens[:, 1:context:2] = keys, values
        np.put_along_axis(tokens, query, keys, axis=1)
        np.put_along_axis(targets, query, values, axis=1)
        if self.random_non_queries:
            tokens = np.where(tokens == 0, rng.integers(0, self.vocab, tokens.shape), tokens)
        return tokens, targets

    def _gaps(self, rng: np.random.Generator, rows: int, slots: int, pairs: int) -> Ints:
        """Slots without replacement: the `pairs` largest of log p + Gumbel noise, in order, are draws made one after another."""
        log_p = (self.power_a - 1) * np.log(np.arange(1, slots + 1))
        order: Ints = np.argsort(-(log_p + rng.gumbel(size=(rows, slots))), axis=1)[:, :pairs]
        return order

    def check_cell(self, length: int, pairs: int) -> None:
        """Raise DataError unless rows of `length` tokens can hold `pairs` pairs."""
        if length % 2:
            raise DataError(f"mqar rows must have an even number of tokens, but got T={length}; change train.seq_len or the segment")
        if length >= self.vocab:
            raise DataError(f"mqar needs more tokens in its vocabulary than in a row, but got vocab={self.vocab} and T={length}; raise vocab")
        if 4 * pairs > length:
            raise DataError(f"mqar needs 4 tokens of a row for each pair, but got {pairs} pairs and T={length}; lower num_kv_pairs or raise T")


def _distinct(rng: np.random.Generator, rows: int, choices: int, count: int) -> Ints:
    """(rows, count) numbers below `choices`, different within a row."""
    return np.stack([rng.choice(choices, count, replace=False) for _ in range(rows)])
