"""In-context recall: pairs repeat within a row, and a key that comes again must bring its value."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from hymo.data.synthetic import IGNORED, Ints, Split, Task, task
from hymo.errors import DataError


@task("in_context_recall")
class InContextRecall(Task):
    """In-context recall of MAD (arXiv 2403.17844), by its published generator:

        x = (k_1 v_1 k_2 v_2 … k_n v_n),   v = a map of the row's own from keys to values,   k_n one of the keys shown before

    With `multi_query` every value whose key was shown before is asked for, else only the last one, which a copy mark announces. Training asks for
    the next token everywhere; held-out rows ask for the recalled values alone. Vocabulary: keys, values, noise, then the copy mark (single query).

    A pair is `frac_noise` likely to be two noise tokens instead. The published default is no noise *vocabulary* either: the generator's own default
    of 16 would leave none of 16 tokens for keys and values. Raises DataError for a length that is odd, or a vocabulary without keys.
    """

    vocab: int = Field(default=16, gt=0, description="tokens in all")
    length: int = Field(default=128, ge=4, description="tokens of the pairs in a row, even")
    multi_query: bool = Field(default=True, description="ask for every value that can be known; false: for the last one, after a mark")
    noise_vocab: int = Field(default=0, ge=0, description="tokens that are noise, taken from `vocab`")
    frac_noise: float = Field(default=0.0, ge=0, lt=1, description="chance that a pair is noise")

    @property
    def vocab_size(self) -> int:
        return self.vocab

    def sample(self, rng: np.random.Generator, rows: int, seq_len: int, split: Split) -> tuple[Ints, Ints]:
        usable = self.vocab - self.noise_vocab - (0 if self.multi_query else 1)
        self._check(usable)
        self.must_fit(self.length - self.multi_query, seq_len)
        n, n_keys = self.length // 2, usable // 2
        keys = rng.integers(0, n_keys, (rows, n))
        noise = self._noise(rng, rows, n)
        shown = (keys[..., None] == np.arange(n_keys)) & ~noise[..., None]      # (rows, n, key)
        keys[:, -1] = (rng.random((rows, n_keys)) * shown[:, :-1].any(axis=1)).argmax(axis=1)
        known = np.take_along_axis(shown.cumsum(axis=1) - shown, keys[..., None], axis=2)[..., 0] > 0
        values = np.take_along_axis(rng.integers(n_keys, usable, (rows, n_keys)), keys, axis=1)
        pairs = np.stack([keys, values], axis=-1)
        pairs = np.where(noise[..., None], rng.integers(usable, usable + max(1, self.noise_vocab), pairs.shape), pairs)
        asked = known & ~noise & (self.multi_query | (np.arange(n) == n - 1))
        answers = np.stack([np.full_like(values, IGNORED), np.where(asked, values, IGNORED)], axis=-1)
        tokens, labels = pairs.reshape(rows, -1), answers.reshape(rows, -1)
        if not self.multi_query:
            tokens, labels = np.insert(tokens, -2, self.vocab - 1, axis=1), np.insert(labels, -2, IGNORED, axis=1)
        return tokens, tokens[:, 1:] if split == "train" else labels[:, 1:]

    def _noise(self, rng: np.random.Generator, rows: int, n: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Which pairs are noise: never the last one, nor one before it that is drawn for each row, so that there is something to ask for."""
        noise = rng.random((rows, n)) < self.frac_noise
        noise[:, -1] = False
        noise[np.arange(rows), rng.integers(0, n - 1, rows)] = False
        return noise

    def _check(self, usable: int) -> None:
        if usable < 2:
            raise DataError(f"the task needs a key and a value at least, but got {self.vocab=} with {self.noise_vocab=}; raise vocab")
        if self.frac_noise and not self.noise_vocab:
            raise DataError(f"noise needs tokens of its own, but got {self.frac_noise=} with {self.noise_vocab=}; raise noise_vocab")
        if self.length % 2:
            raise DataError(f"pairs need an even number of tokens, but got {self.length=}")
