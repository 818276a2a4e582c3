"""The suite of prediction heads, which turn the model's last hidden states into hidden states of tokens further ahead."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from hymo.block import Context
from hymo.testing.blocks import noise
from hymo.testing.common import BlockContract


class HeadContract(BlockContract):
    """A block of kind `head`: forward(hidden_BTD, tokens_BT, embed, ctx) -> [h1 (B, T-1, D), h2 (B, T-2, D), …].

    hᵏ_t may use the hidden states up to t and the tokens up to t+k, and predicts token t+k+1.
    """

    kind: ClassVar[Literal["head"]] = "head"

    def inputs(self, length: int = 20) -> tuple[Tensor, Tensor, nn.Embedding]:
        settings = self.settings()
        generator = torch.Generator().manual_seed(7)
        embed = nn.Embedding(settings["vocab_size"], settings["d_model"], _weight=noise(settings["vocab_size"], settings["d_model"], seed=3))
        tokens = torch.randint(settings["vocab_size"], (2, length), generator=generator)
        return noise(2, length, settings["d_model"]), tokens, embed

    @pytest.mark.parametrize("length", [7, 63, 100])
    def test_each_head_is_one_token_shorter(self, config: dict[str, Any], length: int) -> None:
        hidden, tokens, embed = self.inputs(length)
        outputs = self.build(config)(hidden, tokens, embed, Context.for_tokens((2, length), "cpu"))
        assert [tuple(h.shape) for h in outputs] == [(2, length - k - 1, hidden.shape[-1]) for k in range(len(outputs))]
        assert all(torch.isfinite(h).all() for h in outputs)

    def test_sees_exactly_the_tokens_before_its_label(self, config: dict[str, Any]) -> None:
        block, t, vocab_size = self.build(config), 9, self.settings()["vocab_size"]
        hidden, tokens, embed = self.inputs()
        ctx = Context.for_tokens((2, 20), "cpu")
        before = block(hidden, tokens, embed, ctx)
        for k in range(1, len(before) + 1):
            label, last = tokens.clone(), tokens.clone()
            label[:, t + k + 1] = (label[:, t + k + 1] + 1) % vocab_size        # the label of hᵏ_t
            last[:, t + k] = (last[:, t + k] + 1) % vocab_size                  # the newest token that hᵏ_t may see
            blind, keen = block(hidden, label, embed, ctx)[k - 1], block(hidden, last, embed, ctx)[k - 1]
            assert torch.allclose(blind[:, : t + 1], before[k - 1][:, : t + 1], atol=self.atol), f"head {k} must not see its label"
            assert not torch.allclose(keen[:, t], before[k - 1][:, t]), f"head {k} must use token t+{k}"

    def test_causal_in_hidden(self, config: dict[str, Any]) -> None:
        block, t = self.build(config), 9
        hidden, tokens, embed = self.inputs()
        other = hidden.clone()
        other[:, t + 1 :] += 1
        ctx = Context.for_tokens((2, 20), "cpu")
        for a, b in zip(block(hidden, tokens, embed, ctx), block(other, tokens, embed, ctx), strict=True):
            torch.testing.assert_close(a[:, : t + 1], b[:, : t + 1], atol=self.atol, rtol=0)

    def test_gradients(self, config: dict[str, Any]) -> None:
        block = self.build(config).train()
        hidden, tokens, embed = self.inputs()
        outputs = block(hidden.requires_grad_(), tokens, embed, Context.for_tokens((2, 20), "cpu"))
        if outputs:
            self.check_gradients(block, torch.cat(outputs, dim=1))
            assert hidden.grad is not None
            assert torch.isfinite(hidden.grad).all()
            assert embed.weight.grad is not None, "a head reads the model's own embedding"

    def test_bfloat16_autocast(self, config: dict[str, Any]) -> None:
        block = self.build(config)
        hidden, tokens, embed = self.inputs()
        exact = block(hidden, tokens, embed, Context.for_tokens((2, 20), "cpu"))
        with torch.autocast("cpu", torch.bfloat16):
            rough = block(hidden, tokens, embed, Context.for_tokens((2, 20), "cpu"))
        for ours, theirs in zip(rough, exact, strict=True):
            assert torch.isfinite(ours).all()
            error = (ours.float() - theirs).norm() / theirs.norm()
            assert error < 0.05, f"bf16 must keep two digits, but got a relative {error=}"

    def test_embedding_is_not_registered(self, config: dict[str, Any]) -> None:
        block = self.build(config)
        hidden, tokens, embed = self.inputs()
        known = set(dict(block.named_parameters()))
        block(hidden, tokens, embed, Context.for_tokens((2, 20), "cpu"))
        assert set(dict(block.named_parameters())) == known, "the embedding belongs to the model and must not become a child of its head"
