"""Text from a trained model: prompts in, completions out, many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from hymo.data.tokenizer import Tokenizer
from hymo.errors import HymoError
from hymo.generate.decode import Decoder
from hymo.generate.sampling import Sampling
from hymo.generate.text import Writer
from hymo.model import HyMo

__all__ = ["Completion", "Decoder", "Limits", "Sampling", "generate"]

DEFAULT_TOKENS = 256


@dataclass(frozen=True)
class Limits:
    """Where a completion ends, `<|endoftext|>` apart, which always ends one.

    max_tokens     tokens of a completion; None: DEFAULT_TOKENS, or as many as the model's length leaves room for
    stop           texts, none of which is ever part of a completion
    stop_tokens    tokens, likewise
    longer         go on past model.max_seq_len, the length that the model was trained to read
    """

    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    longer: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise HymoError(f"max_tokens must be 1 at least, but got {self.max_tokens}")
        if "" in self.stop:
            raise HymoError("a stop string must hold something, but got '', which stands everywhere")

    def room(self, prompt: int, longest: int) -> int:
        """Tokens that a prompt of this length may be gone on with. Raises HymoError when that is not what was asked for."""
        left = longest - prompt
        if self.longer:
            return self.max_tokens or DEFAULT_TOKENS
        if left < (self.max_tokens or 1):
            raise HymoError(
                f"prompt and completion must fit model.max_seq_len={longest}, but got {prompt} + {self.max_tokens or 1} tokens; "
                "shorten one of them, or allow more with --longer"
            )
        return self.max_tokens or min(left, DEFAULT_TOKENS)


@dataclass(frozen=True)
class Completion:
    """What a prompt was gone on with."""

    text: str
    tokens: list[int]                               # without the one that ended it
    reason: Literal["end", "stop", "length"]        # `<|endoftext|>`, a stop, or no more room


def generate(
    model: HyMo,
    tokenizer: Tokenizer,
    prompts: Sequence[bytes],
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    on_text: Callable[[int, str], None] | None = None,
) -> list[Completion]:
    """A completion of each prompt. `on_text(row, text)` is called with every piece of text as soon as it is certain.

    Raises HymoError for a prompt that is empty, too long, or (numbers of a synthetic task) holds what the tokenizer cannot read.
    """
    limits, sampling = limits or Limits(), sampling or Sampling()
    encoded = [[int(token) for token in tokens] for tokens in tokenizer.encode_many(prompts)]
    if not encoded or not all(encoded):
        raise HymoError("a prompt must hold one token at least, but got an empty one; the first token of a text is nothing that a model predicts")
    rows = [_Row(limits.room(len(tokens), model.config.max_seq_len), Writer(limits.stop)) for tokens in encoded]
    stops = frozenset(limits.stop_tokens)
    steps = max(row.room for row in rows)
    uniforms_BN = sampling.uniforms(len(rows), steps).to(model.embedding.weight.device)
    decoder = Decoder(model, encoded, dtype, room=steps)
    logits_BW = decoder.read()[:, : tokenizer.vocab_size]       # a vocabulary rounded up has rows that stand for no token
    for n in range(steps):
        chosen_B = sampling.choose(logits_BW, uniforms_BN[:, n])
        for index, (row, token) in enumerate(zip(rows, chosen_B.tolist(), strict=True)):
            text = row.take(token, tokenizer, stops)
            if text and on_text:
                on_text(index, text)
        if all(row.reason for row in rows):
            break
        logits_BW = decoder.step(chosen_B)[:, : tokenizer.vocab_size]
    return [row.completion() for row in rows]


@dataclass
class _Row:
    """One completion while it grows."""

    room: int
    writer: Writer
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    reason: Literal["end", "stop", "length"] | None = None

    def take(self, token: int, tokenizer: Tokenizer, stops: frozenset[int]) -> str:
        """Account for one token; the text that became certain."""
        if self.reason:
            return ""
        if token == tokenizer.eot_id or token in stops:
            self.reason = "end" if token == tokenizer.eot_id else "stop"
            text = self.writer.close()
        else:
            self.tokens.append(token)
            text = self.writer.write(tokenizer.piece(token))
            if self.writer.stopped:
                self.reason = "stop"
            elif len(self.tokens) == self.room:
                self.reason = "length"
                text += self.writer.close()
        self.text += text
        return text

    def completion(self) -> Completion:
        assert self.reason is not None
        return Completion(self.text, self.tokens, self.reason)
