"""Orders drawn from keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from hymo.data.cache import digest

Index = np.ndarray[Any, np.dtype[np.int64]]


def permutation(n: int, *key: object) -> Index:
    """A permutation of 0 … n−1 drawn from `key`. Uses Philox's raw output, which numpy promises to keep, so an order outlives numpy's versions."""
    bits = np.random.Philox(key=int(digest(*key), 16)).random_raw(n)
    return np.argsort(bits, kind="stable")
