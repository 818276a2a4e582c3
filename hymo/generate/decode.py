"""Reading prompts and going on from them a token at a time, many rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hymo.generate.replay import InPlace, Replay
from hymo.model import DecodeState, HyMo
from hymo.ops.grouped_linear import GroupedLinear

PADDING = -1            # the document that padding belongs to
CHUNK_TOKENS = 16_384   # of prompt read at once, over all rows: bounds what attention and experts hold beside the state


class Decoder:
    """`model` on some prompts. The state is all it keeps: recurrent states in fp32, caches in the compute type `dtype`.

    Prompts of different lengths end together; what comes before the shorter ones is a document of its own, which nothing of a prompt sees.
    With `room`, the number of tokens that will be read one at a time after the prompts, a GPU replays one recorded step for all of them, when every
    mixer can reserve room for what it keeps.
    """

    def __init__(self, model: HyMo, prompts: Sequence[Sequence[int]], dtype: torch.dtype = torch.float32, room: int = 0) -> None:
        self.model, self.dtype, self.room = model.eval(), dtype, room
        self.device = model.embedding.weight.device
        self.tokens_BT, self.documents_BT = padded(prompts, self.device)
        self.state: DecodeState = model.initial_state(len(prompts), dtype=dtype)
        self.advance: Callable[[Tensor], Tensor] | None = None       # the step in reserved room
        if dtype != torch.float32:
            keep_products_in(model, dtype)

    def read(self) -> Tensor:
        """Read the prompts; the logits of what follows each, (B, W)."""
        size = max(1, CHUNK_TOKENS // len(self.tokens_BT))
        for begin in range(0, self.tokens_BT.shape[1], size):
            part = slice(begin, begin + size)
            logits, self.state = self._step(self.tokens_BT[:, part], self.state, None if self.documents_BT is None else self.documents_BT[:, part])
        if self.room and self.device.type == "cuda":
            self.reserve()
        return logits[:, -1]

    def step(self, tokens_B: Tensor) -> Tensor:
        """Read one more token of each row; the logits of the next, (B, W), good until the next step."""
        tokens_B1 = tokens_B[:, None]
        if self.advance is not None:
            return self.advance(tokens_B1)[:, -1]
        logits, self.state = self._step(tokens_B1, self.state, None if self.documents_BT is None else self.documents_BT[:, -1:])
        return logits[:, -1]

    def reserve(self) -> None:
        """Make room for all tokens to come, and record the step where that can be done."""
        state = self.model.reserve(self.state, self.room)
        if state is not None:
            self.state = state
            self.advance = Replay(self._step, state, len(self.tokens_BT)) if self.device.type == "cuda" else InPlace(self._step, state)

    @torch.no_grad()
    def _step(self, tokens_BT: Tensor, state: DecodeState, documents_BT: Tensor | None = None) -> tuple[Tensor, DecodeState]:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return self.model.step(tokens_BT, state, documents_BT, last_only=True)


def padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts side by side, ending together, (B, T); and which are padding (document −1), or None where none is."""
    length = max(map(len, prompts))
    tokens = torch.tensor([[0] * (length - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    if all(len(prompt) == length for prompt in prompts):
        return tokens, None
    return tokens, torch.tensor([[PADDING] * (length - len(prompt)) + [0] * len(prompt) for prompt in prompts], device=device)


def keep_products_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold weights that autocast would cast at every call in `dtype`, each from its first call on. The numbers are the same.

    A weight that its block reads without a call (a router's, in fp32) stays as it is.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | GroupedLinear):
            _keep_at_first_call(module, dtype)


def _keep_at_first_call(module: nn.Linear | GroupedLinear, dtype: torch.dtype) -> None:
    def keep(module: nn.Module, args: object) -> None:
        weight = module.get_parameter("weight")
        weight.data = weight.data.to(dtype)
        handle.remove()

    handle = module.register_forward_pre_hook(keep)
