"""A batch: rows of T+1 tokens, each row several documents packed side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100      # a label that no loss counts; PyTorch's own `ignore_index`
PADDING = -1        # the document number of padding


@dataclass(frozen=True)
class Batch:
    """B rows of T+1 tokens; head k (0: the main head) at position t is asked for token t+k+1.

        label_k[t] = token[t+k+1]   if document[t+k+1] = document[t] ≠ padding,   else −100

    tokens     (B, T+1) int64
    documents  (B, T+1) int32; equal neighbours are one document, numbered within their row; −1 is padding
    targets    (B, T) int64 or None; a task's own labels: targets[t] takes the place of token[t+1], −100 is not counted
    """

    tokens: Tensor
    documents: Tensor
    targets: Tensor | None = None

    @property
    def inputs(self) -> Tensor:
        """(B, T): what the model reads."""
        return self.tokens[:, :-1]

    @property
    def input_documents(self) -> Tensor:
        """(B, T): the documents of `inputs`."""
        return self.documents[:, :-1]

    def labels(self, k: int = 0) -> Tensor:
        """(B, T−k): the labels of head k; no wrapped or zero-filled tail, none in another document."""
        ahead = self.tokens[:, 1:] if self.targets is None else self.targets
        begin, end = self.documents[:, : -1 - k], self.documents[:, 1 + k :]
        return ahead[:, k:].masked_fill((begin != end) | (end == PADDING), IGNORED)

    def rows(self, start: int, stop: int) -> Batch:
        """Rows start … stop−1: a micro-batch."""
        return Batch(self.tokens[start:stop], self.documents[start:stop], None if self.targets is None else self.targets[start:stop])

    def to(self, device: torch.device | str) -> Batch:
        """The batch on `device`; to a GPU through pinned memory, so that the copy overlaps with computing."""
        def move(x: Tensor) -> Tensor:
            if torch.device(device).type == "cuda" and not x.is_cuda:
                x = x.contiguous().pin_memory()
            return x.to(device, non_blocking=True)

        return Batch(move(self.tokens), move(self.documents), None if self.targets is None else move(self.targets))

    def __len__(self) -> int:
        return self.tokens.shape[0]
