"""A decode step recorded once and replayed for every token: on a GPU most of its time would go into being launched, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hymo.model import DecodeState

Step = Callable[[Tensor, DecodeState], tuple[Tensor, DecodeState]]
WARM_UPS = 3        # before recording: kernels are built and libraries choose their workspaces then


class InPlace:
    """`step` on a state with reserved room (HyMo.reserve), which it advances in place: tokens_B1 -> logits (B, 1, W), the same tensors every time."""

    def __init__(self, step: Step, state: DecodeState) -> None:
        self.step, self.state = step, state

    def __call__(self, tokens_B1: Tensor) -> Tensor:
        logits, after = self.step(tokens_B1, self.state)
        for old, new in zip(tensors(self.state), tensors(after), strict=True):
            if new is not old:
                old.copy_(new)
        return logits


class Replay:
    """The same as a CUDA graph. Its logits are overwritten by the next call."""

    def __init__(self, step: Step, state: DecodeState, batch: int) -> None:
        advance = InPlace(step, state)
        device = state.past.positions_BT.device if state.past is not None else None
        self.state = state
        self.tokens_B1 = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        moved = self._moved(step)
        before = [tensor.clone() for tensor in moved]       # recording leaves no trace: what was written to the room is written again
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                advance(self.tokens_B1)
                self._restore(moved, before)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = advance(self.tokens_B1)
        self._restore(moved, before)

    def __call__(self, tokens_B1: Tensor) -> Tensor:
        self.tokens_B1.copy_(tokens_B1)
        self.graph.replay()
        return self.logits

    def _moved(self, step: Step) -> list[Tensor]:
        """The tensors of the state that a step replaces; the others are written at the place of the new token only."""
        _, after = step(self.tokens_B1, self.state)
        return [old for old, new in zip(tensors(self.state), tensors(after), strict=True) if new is not old]

    @staticmethod
    def _restore(tensors: list[Tensor], values: list[Tensor]) -> None:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def tensors(state: DecodeState) -> list[Tensor]:
    """What a step changes: the layers' states and the place of the next token."""
    return [leaf for leaf in tree_leaves((state.layers, state.slot)) if isinstance(leaf, Tensor)]
