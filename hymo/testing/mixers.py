"""The suite of mixers: what forward may see, what decoding must repeat, what the state may weigh."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hymo.block import Block, Context
from hymo.testing.blocks import StreamContract, noise


def decode(block: Block, x_BTD: Tensor, chunks: list[int], documents_BT: Tensor | None = None) -> tuple[Tensor, Any]:
    """Output of `step` over x, read in chunks of the given sizes, and the state at the end."""
    state = block.initial_state(x_BTD.shape[0], x_BTD.device, x_BTD.dtype)
    past: Context | None = None
    outputs, begin = [], 0
    for size in chunks:
        part = slice(begin, begin + size)
        documents = None if documents_BT is None else documents_BT[:, part]
        ctx = Context.for_tokens((x_BTD.shape[0], size), x_BTD.device, documents, past=past)
        y, state = block.step(x_BTD[:, part], state, ctx)
        outputs.append(y)
        past, begin = ctx.whole, begin + size
    return torch.cat(outputs, dim=1), state


class MixerContract(StreamContract):
    """A block of kind `mixer`: causal over time, blind to other documents, decodable."""

    kind: ClassVar[Literal["mixer"]] = "mixer"

    def test_mixes_over_time(self, config: dict[str, Any]) -> None:
        block, x = self.build(config), noise(1, 20, self.settings()["d_model"])
        other = x.clone()
        other[:, 18] += 1
        ctx = Context.for_tokens((1, 20), "cpu")
        assert not torch.equal(block(x, ctx)[:, 19], block(other, ctx)[:, 19]), "a token must see the one before it"

    def test_packed_documents_equal_separate_ones(self, config: dict[str, Any]) -> None:
        # lengths below the width of a short convolution, a single token, and one that begins at 64, where a chunk may
        block, lengths = self.build(config), [5, 1, 2, 56, 9, 30]
        x = noise(2, sum(lengths), block.layer.d_model)
        numbers = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).expand(2, -1)
        packed = block(x, Context.for_tokens((2, sum(lengths)), "cpu", numbers))
        apart = [block(part, Context.for_tokens((2, part.shape[1]), "cpu")) for part in torch.split(x, lengths, dim=1)]
        torch.testing.assert_close(packed, torch.cat(apart, dim=1), atol=self.atol, rtol=0)

    def test_gradients_do_not_cross_documents(self, config: dict[str, Any]) -> None:
        block = self.build(config)
        x = noise(1, 20, block.layer.d_model).requires_grad_()
        documents = torch.tensor([[0] * 7 + [1] * 13])
        block(x, Context.for_tokens((1, 20), "cpu", documents))[:, 7:].square().sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad[:, :7], torch.zeros_like(x.grad[:, :7]))
        assert x.grad[:, 7:].any()

    @pytest.mark.parametrize("chunks", [[20], [1] * 20, [1, 19], [19, 1], [2, 1, 10, 7]], ids=lambda sizes: f"{len(sizes)}x{sizes[0]}")
    def test_step_equals_forward(self, config: dict[str, Any], chunks: list[int]) -> None:
        block = self.build(config)
        x = noise(2, 20, block.layer.d_model)
        with torch.no_grad():
            whole = block(x, Context.for_tokens((2, 20), "cpu"))
            stepped, _ = decode(block, x, chunks)
        torch.testing.assert_close(stepped, whole, atol=self.atol, rtol=0)

    @pytest.mark.parametrize("chunks", [[7, *[1] * 9], [4, 11, 1], [16]], ids=lambda sizes: f"{len(sizes)}x{sizes[0]}")
    def test_left_padded_prompts_decode_as_if_alone(self, config: dict[str, Any], chunks: list[int]) -> None:
        """Rows of a batch begin at different times: the padding before them is a document of its own."""
        block, pads = self.build(config), (0, 2, 9)
        x = noise(3, 16, block.layer.d_model)
        documents = torch.stack([torch.tensor([-1] * pad + [0] * (16 - pad)) for pad in pads])
        with torch.no_grad():
            stepped, _ = decode(block, x, chunks, documents)
            for row, pad in enumerate(pads):
                alone = block(x[row : row + 1, pad:], Context.for_tokens((1, 16 - pad), "cpu"))
                torch.testing.assert_close(stepped[row : row + 1, pad:], alone, atol=self.atol, rtol=0)

    @pytest.mark.parametrize(("batch", "chunks"), [(3, []), (3, [1]), (3, [9, 1]), (1, [11, 1, 1])], ids=["empty", "one", "batch", "single"])
    def test_decode_state_weighs_what_is_stated(self, config: dict[str, Any], batch: int, chunks: list[int]) -> None:
        """Counted in storage, so that a small view that keeps a large tensor alive is found out."""
        block, length = self.build(config), sum(chunks)
        state = block.initial_state(batch, "cpu", torch.float32)
        if chunks:
            with torch.no_grad():
                _, state = decode(block, noise(batch, length, block.layer.d_model), chunks)
        held = sum(leaf.untyped_storage().nbytes() for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
        stated = 4 * batch * block.state_elems(length)
        assert held == stated, f"state_elems must be what is kept, but got {held=} and {stated=} bytes in fp32"
