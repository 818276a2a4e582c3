"""Suites of the kinds that act on each token alone: feed-forward blocks and position encodings."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from hymo.block import Context
from hymo.ops.rotary import rotate
from hymo.testing.common import BlockContract, counted_flops

LENGTHS = (1, 63, 100)


def noise(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal values, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class StreamContract(BlockContract):
    """Shared by mixers and ffns, which both map (B, T, D) to (B, T, D) without looking ahead."""

    @pytest.mark.parametrize("length", LENGTHS)
    def test_shape_and_dtype_kept(self, config: dict[str, Any], length: int) -> None:
        block = self.build(config)
        x = noise(2, length, block.layer.d_model)
        y = block(x, Context.for_tokens((2, length), "cpu"))
        assert y.shape == x.shape
        assert y.dtype == x.dtype
        assert torch.isfinite(y).all()

    def test_bfloat16_autocast(self, config: dict[str, Any]) -> None:
        block = self.build(config)
        x = noise(2, 20, block.layer.d_model)
        exact = block(x, Context.for_tokens((2, 20), "cpu"))
        with torch.autocast("cpu", torch.bfloat16):
            rough = block(x, Context.for_tokens((2, 20), "cpu"))
        assert torch.isfinite(rough).all()
        error = (rough.float() - exact).norm() / exact.norm()
        assert error < 0.05, f"bf16 must keep two digits, but got a relative {error=}"

    def test_causal(self, config: dict[str, Any]) -> None:
        block = self.build(config)
        x = noise(2, 40, block.layer.d_model)
        ctx = Context.for_tokens((2, 40), "cpu")
        for cut in (1, 17, 39):
            other = x.clone()
            other[:, cut:] = noise(*other[:, cut:].shape, seed=2)
            before, after = block(x, ctx), block(other, ctx)
            torch.testing.assert_close(before[:, :cut], after[:, :cut], atol=self.atol, rtol=0, msg=f"outputs before {cut} saw tokens after it")
            assert not torch.allclose(before[:, cut:], after[:, cut:]), "the output must depend on the input"

    @pytest.mark.parametrize("length", LENGTHS)
    def test_gradients(self, config: dict[str, Any], length: int) -> None:
        block = self.build(config).train()
        x = noise(2, length, block.layer.d_model).requires_grad_()
        self.check_gradients(block, block(x, Context.for_tokens((2, length), "cpu")), strict=length > 1)
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()

    def test_same_seed_same_output(self, config: dict[str, Any]) -> None:
        x = noise(2, 30, self.settings()["d_model"])
        first, again = (self.build(config, seed=5)(x, Context.for_tokens((2, 30), "cpu")) for _ in range(2))
        assert torch.equal(first, again)

    def test_flops_against_torch(self, config: dict[str, Any]) -> None:
        block, length = self.build(config), 64
        seen = counted_flops(block, noise(1, length, block.layer.d_model), Context.for_tokens((1, length), "cpu"))
        stated = self.linear_flops(block) + block.mixing_flops(length) - self.elementwise_flops(block, length)
        assert stated == pytest.approx(seen, rel=1e-9), f"stated FLOPs per token must be torch's count, but got {stated=} and {seen=}"


class FfnContract(StreamContract):
    """A block of kind `ffn`: each token on its own, so that neither order nor company matters (in evaluation mode)."""

    kind: ClassVar[Literal["ffn"]] = "ffn"

    def test_tokens_are_independent(self, config: dict[str, Any]) -> None:
        block = self.build(config)
        x = noise(2, 12, block.layer.d_model)
        together = block(x, Context.for_tokens((2, 12), "cpu"))
        apart = torch.cat([block(x[:, t : t + 1], Context.for_tokens((2, 1), "cpu")) for t in range(12)], dim=1)
        torch.testing.assert_close(together, apart, atol=self.atol, rtol=0)

    def test_keeps_no_state(self, config: dict[str, Any]) -> None:
        assert self.on_meta(config).state_elems(4096) == 0


class PositionContract(BlockContract):
    """A block of kind `position`: x_BTHK -> x_BTHK, a function of the token's position alone."""

    kind: ClassVar[Literal["position"]] = "position"

    @pytest.mark.parametrize("length", LENGTHS)
    def test_shape_and_dtype_kept(self, config: dict[str, Any], length: int) -> None:
        block = self.build(config)
        for dtype in (torch.float32, torch.bfloat16):
            x = noise(2, length, 3, 8).to(dtype)
            y = block(x, Context.for_tokens((2, length), "cpu"))
            assert y.shape == x.shape
            assert y.dtype == dtype

    def test_positions_come_from_the_context(self, config: dict[str, Any]) -> None:
        block, x = self.build(config), noise(1, 30, 2, 8)
        whole = block(x, Context.for_tokens((1, 30), "cpu"))
        tail = block(x[:, 12:], Context.for_tokens((1, 18), "cpu", start_pos=12))
        torch.testing.assert_close(whole[:, 12:], tail, atol=1e-6, rtol=0)

    def test_positions_restart_in_each_document(self, config: dict[str, Any]) -> None:
        block, x = self.build(config), noise(1, 30, 2, 8)
        documents = torch.tensor([[4] * 11 + [9] * 19])
        packed = block(x, Context.for_tokens((1, 30), "cpu", documents))
        apart = [block(part, Context.for_tokens((1, part.shape[1]), "cpu")) for part in (x[:, :11], x[:, 11:])]
        torch.testing.assert_close(packed, torch.cat(apart, dim=1), atol=1e-6, rtol=0)

    def test_one_context_serves_several_widths(self, config: dict[str, Any]) -> None:
        block, ctx = self.build(config), Context.for_tokens((1, 9), "cpu")
        for width in (8, 4, 8):
            x = noise(1, 9, 2, width)
            torch.testing.assert_close(block(x, ctx), block(x, Context.for_tokens((1, 9), "cpu")), atol=0, rtol=0)

    def test_far_beyond_the_trained_length(self, config: dict[str, Any]) -> None:
        block, start = self.build(config), 10 * self.settings()["max_seq_len"]
        y = block(noise(1, 5, 2, 8), Context.for_tokens((1, 5), "cpu", start_pos=start))
        assert torch.isfinite(y).all()

    def test_a_stated_rotation_is_what_forward_does(self, config: dict[str, Any]) -> None:
        """A mixer that has the rotation need not call the block."""
        block, ctx, x = self.build(config), Context.for_tokens((1, 9), "cpu"), noise(1, 9, 2, 8)
        table = block.rotation(8, ctx)
        if table is not None:
            torch.testing.assert_close(rotate(x, table), block(x, ctx), atol=1e-6, rtol=0)
        assert block.rotation(8, ctx) is table, "it is made once a pass"

    def test_nothing_is_saved(self, config: dict[str, Any]) -> None:
        assert not self.build(config).state_dict(), "a position encoding has no weights, and its tables are not persistent"
