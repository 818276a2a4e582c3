"""Tokenizers: text to numbers and back without losing a byte.

Raw bytes, or a byte-level BPE kept as a `tokenizer.json` of the `tokenizers` library. Both know 256 single-byte tokens, so there is no unknown
token. `<|endoftext|>` ends each document and belongs to it; written out inside a text it is plain text, never the token.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hymo.errors import DataError
from hymo.files import read_small

if TYPE_CHECKING:
    from torch import Tensor

Tokens = np.ndarray[Any, np.dtype[Any]]

END_OF_TEXT = "<|endoftext|>"
END_NAMES = (END_OF_TEXT, "<|end_of_text|>", "<|eos|>", "<eos>", "</s>")     # what others call it, tried in this order
_PIECE = 1 << 20        # bytes of a document handed to the library at once
_MOST_BYTES = 1 << 27   # of a tokenizer.json; one of 256,000 entries takes a quarter of that
_MOST = 1 << 24         # entries; a hostile file could ask for a table of any size
_PROBE = bytes(range(1, 128)) + "\n\n  x = naïve_größe(3.14) # 猫 🙂\t ".encode()


class Tokenizer(ABC):
    """What every tokenizer answers. `token_bytes[i]` are the bytes that token i stands for; b"" for special tokens."""

    name: str
    fingerprint: str            # 16 hex digits; changes with anything that changes the numbers
    eot_id: int
    token_bytes: list[bytes]

    @abstractmethod
    def encode_many(self, documents: Sequence[bytes]) -> list[Tokens]:
        """The tokens of each document, `<|endoftext|>` not included."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; `<|endoftext|>` is not appended."""
        return [int(i) for i in self.encode_many([text.encode("utf-8", "surrogatepass")])[0]]

    def piece(self, token: int) -> bytes:
        """What a token adds to a text that is written as it comes; nothing for special tokens."""
        return self.token_bytes[token]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of tokens; special tokens are empty."""
        return b"".join(self.token_bytes[i] for i in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 (half a character, say) show as U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @cached_property
    def bytes_per_token(self) -> Tensor:
        """(W) int64: bytes of text that each token stands for, 0 for special tokens: the denominator of bits per byte."""
        import torch

        return torch.tensor([len(b) for b in self.token_bytes])


class BytesTokenizer(Tokenizer):
    """Token i < 256 is byte i; 256 is `<|endoftext|>`."""

    name = "bytes"
    fingerprint = hashlib.sha256(b"bytes+endoftext").hexdigest()[:16]
    eot_id = 256

    def __init__(self) -> None:
        self.token_bytes = [bytes([i]) for i in range(256)] + [b""]

    def encode_many(self, documents: Sequence[bytes]) -> list[Tokens]:
        return [np.frombuffer(document, np.uint8).astype(np.uint16) for document in documents]


def byte_alphabet() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table): printable Latin-1 is itself, the rest follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(rest)) for b in range(256)]


class JsonTokenizer(Tokenizer):
    """A byte-level `tokenizer.json`.

    Its library reads str only. Bytes that are not UTF-8 therefore pass it by and become their own single-byte tokens: any bytes come back.
    """

    def __init__(self, text: str, name: str) -> None:
        from tokenizers import Tokenizer as Library

        try:
            spec = json.loads(text)
            _must_be_byte_level(spec, name)
            self._library = Library.from_str(text)
        except DataError:
            raise
        except BaseException as error:
            raise _unreadable(error, name) from None
        self._library.encode_special_tokens = True      # `<|endoftext|>` inside a text is text
        self._library.no_truncation()
        self._library.no_padding()
        self.text = text
        self.name = name
        self.fingerprint = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]

        ids = self._library.get_vocab(with_added_tokens=True)
        if not ids or max(ids.values()) >= _MOST or len(set(ids.values())) < len(ids):
            raise DataError(f"a tokenizer must give each entry a number of its own below {_MOST:,}, but {name!r} does not")
        special = {token.content for token in self._library.get_added_tokens_decoder().values() if token.special}
        to_byte = {c: b for b, c in enumerate(byte_alphabet())}
        self.token_bytes = [b""] * (max(ids.values()) + 1)
        for token, i in ids.items():
            if token not in special:
                spelt = all(c in to_byte for c in token)        # added tokens are written as text, not in the byte alphabet
                self.token_bytes[i] = bytes(to_byte[c] for c in token) if spelt else token.encode()
        missing = [b for b, c in enumerate(byte_alphabet()) if c not in ids]
        if missing:
            raise DataError(f"a tokenizer must hold all 256 bytes, or text would be lost, but got {name!r} without {len(missing)} of them")
        self._byte_ids = np.array([ids[c] for c in byte_alphabet()], np.uint32)
        end = next((n for n in END_NAMES if n in special), None)
        if end is None:
            raise DataError(f"a tokenizer must have an end-of-text token, one of {', '.join(END_NAMES)}, but got {name!r} without; add it as special")
        self.eot_id = ids[end]
        try:
            back = self.decode_bytes(self.encode_many([_PROBE])[0])
        except BaseException as error:
            raise _unreadable(error, name) from None
        if back != _PROBE:
            raise DataError(f"a tokenizer must give text back unchanged, but {name!r} does not; look at its normalizer and pre_tokenizer")

    def encode_many(self, documents: Sequence[bytes]) -> list[Tokens]:
        texts: list[str] = []                           # every stretch of UTF-8, encoded together: the library uses all cores
        plans: list[list[bytes | int]] = []             # for each document: stray bytes, or which of `texts`
        for document in documents:
            plan: list[bytes | int] = []
            for piece in _pieces(document):
                for text, stray in re.findall("([^\udc80-\udcff]+)|([\udc80-\udcff]+)", piece.decode("utf-8", "surrogateescape")):
                    if text:
                        plan.append(len(texts))
                        texts.append(text)
                    else:
                        plan.append(stray.encode("utf-8", "surrogateescape"))
            plans.append(plan)
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)

        def tokens(step: bytes | int) -> Tokens:
            return np.array(encodings[step].ids, np.uint32) if isinstance(step, int) else self._byte_ids[np.frombuffer(step, np.uint8)]

        return [np.concatenate([np.empty(0, np.uint32), *map(tokens, plan)]) for plan in plans]


def _pieces(document: bytes) -> Iterator[bytes]:
    """A long document in pieces of about a megabyte that end with a line, where it has lines: memory stays bounded and all cores work."""
    start = 0
    while len(document) - start > _PIECE:
        cut = document.rfind(b"\n", start, start + _PIECE) + 1 or start + _PIECE
        yield document[start:cut]
        start = cut
    yield document[start:]


def _unreadable(error: BaseException, name: str) -> BaseException:
    """The library raises bare Exception for what it cannot read, and PanicException, no Exception at all, for what it did not foresee."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        return error        # Ctrl-C
    reason = (str(error).splitlines() or [""])[0][:200]
    return DataError(f"a tokenizer must be a tokenizer.json of the `tokenizers` library, but got {name!r}: {reason}")


def _must_be_byte_level(spec: Any, name: str) -> None:
    """Refuse tokenizers that lose text or draw lots: WordPiece, SentencePiece, a space put in front, BPE dropout."""
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(model, dict):
        raise DataError(f"a tokenizer must be a tokenizer.json of the `tokenizers` library, but got {name!r}: it has no model")
    if (kind := model.get("type", "BPE")) != "BPE":
        raise DataError(f"a tokenizer must be a byte-level BPE, or text is lost, but got {name!r} of type {kind!r}; see hymo tokenizer train")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise DataError(f"a tokenizer must do without {key}, but got {name!r} with {model[key]!r}; remove it from the file")
    pre = spec.get("pre_tokenizer")
    steps = pre.get("pretokenizers", [pre]) if isinstance(pre, dict) else []
    byte_level = [step for step in steps if isinstance(step, dict) and step.get("type") == "ByteLevel"] if isinstance(steps, list) else []
    if not byte_level:
        kind = pre.get("type") if isinstance(pre, dict) else pre
        raise DataError(f"a tokenizer must be byte-level, or text is lost, but got {name!r} with pre_tokenizer {kind!r}; see hymo tokenizer train")
    if any(step.get("add_prefix_space", True) for step in byte_level):
        raise DataError(f"a tokenizer must keep text as it is, but got {name!r} with add_prefix_space: true; set it to false in the file")


def read_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, or in a folder that holds one."""
    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    try:
        text = read_small(file, _MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise DataError(f"data.tokenizer must be `bytes`, `auto:N` or a tokenizer.json that exists, but got {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"a tokenizer.json must be readable UTF-8, but got {str(path)!r}: {error}") from None
    return JsonTokenizer(text, str(path))
