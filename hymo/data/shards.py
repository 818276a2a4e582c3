"""A folder of token shards: what `hymo data prepare` writes, what the cache holds, what training maps into memory.

    meta.json          what is in the folder, checked field by field; a digest of every file
    train-00000.bin    tokens, little-endian uint16 or uint32, documents end to end, each with its `<|endoftext|>`
    train-00000.ends   little-endian int64: where each document ends, in tokens
    validation-…       the same for the held-out documents
    tokenizer.json     the tokenizer, unless it is `bytes`
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hymo.data.cache import digest, file_digest
from hymo.data.tokenizer import Tokenizer, Tokens
from hymo.errors import DataError
from hymo.files import read_small

Progress = Callable[[int, int], None]       # documents and tokens written so far
FORMAT: Literal["hymo-tokens-1"] = "hymo-tokens-1"
_META_BYTES = 1 << 26                       # of a meta.json; a quarter of a million shards
_BATCH_BYTES = 4 << 20                      # text handed to the tokenizer at once


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shard(_Strict):
    """One pair of files."""

    stem: str = Field(pattern=r"^(train|validation)-[0-9]{5}$")
    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    sha256: str
    ends_sha256: str


class Meta(_Strict):
    """meta.json."""

    format: Literal["hymo-tokens-1"] = FORMAT
    source: str
    source_fingerprint: str
    tokenizer: str
    tokenizer_fingerprint: str
    vocab_size: int = Field(gt=0)
    dtype: Literal["uint16", "uint32"]
    text_bytes: int = Field(ge=0)
    train: list[Shard]
    validation: list[Shard]

    @property
    def fingerprint(self) -> str:
        """Of the tokens themselves."""
        return digest(self.tokenizer_fingerprint, [(s.stem, s.sha256, s.ends_sha256) for s in [*self.train, *self.validation]])


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The narrowest that holds every token."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def write_split(
    folder: Path,
    split: Literal["train", "validation"],
    documents: Iterable[bytes],
    tokenizer: Tokenizer,
    shard_tokens: int,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> tuple[list[Shard], int]:
    """Tokenise `documents` into shards of about `shard_tokens` tokens, a document never cut, until `max_tokens` are reached.

    Returns the shards and the bytes of text read.
    """
    dtype = np.dtype(token_dtype(tokenizer.vocab_size)).newbyteorder("<")
    eot = np.array([tokenizer.eot_id], dtype)
    shards: list[Shard] = []
    total_documents = total_tokens = text_bytes = 0
    batches = _batched(documents)
    batch = next(batches, None)
    while batch is not None:
        stem = f"{split}-{len(shards):05d}"
        lengths: list[int] = []
        size = 0
        content = hashlib.sha256()
        with (folder / f"{stem}.bin").open("wb") as file:
            while batch is not None and size < shard_tokens:
                for tokens in tokenizer.encode_many(batch):
                    document = np.append(tokens.astype(dtype), eot)
                    file.write(document.data)
                    content.update(document.data)
                    lengths.append(len(document))
                    size += len(document)
                text_bytes += sum(map(len, batch))
                if progress:
                    progress(total_documents + len(lengths), total_tokens + size)
                batch = None if max_tokens and total_tokens + size >= max_tokens else next(batches, None)
        ends = np.cumsum(lengths, dtype="<i8").tobytes()
        (folder / f"{stem}.ends").write_bytes(ends)
        sums = {"sha256": content.hexdigest(), "ends_sha256": hashlib.sha256(ends).hexdigest()}
        shards.append(Shard(stem=stem, tokens=size, documents=len(lengths), **sums))
        total_documents += len(lengths)
        total_tokens += size
    return shards, text_bytes


def _batched(documents: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class TokenStore:
    """The documents of one split, mapped into memory: `lengths` of all, and `gather` of any stretch."""

    def __init__(self, folder: Path, shards: list[Shard], meta: Meta) -> None:
        dtype = np.dtype(meta.dtype).newbyteorder("<")
        self.vocab_size = meta.vocab_size
        self.name = str(folder)
        self._tokens: list[Tokens] = []
        ends = [np.zeros(1, np.int64)]
        offset = 0
        for shard in shards:
            file = folder / f"{shard.stem}.bin"
            self._tokens.append(np.memmap(file, dtype, mode="r") if shard.tokens else np.empty(0, dtype))
            shard_ends = np.fromfile(folder / f"{shard.stem}.ends", "<i8")
            if len(shard_ends) and (np.any(np.diff(shard_ends, prepend=0) <= 0) or shard_ends[-1] != shard.tokens):
                ends_file = str(file.with_suffix(".ends"))
                raise DataError(f"document ends must rise to {shard.tokens}, but {ends_file!r} does not; remove its folder and prepare it again")
            ends.append(shard_ends + offset)
            offset += shard.tokens
        self.bounds: np.ndarray[Any, np.dtype[np.int64]] = np.concatenate(ends)
        self._shard_begin = np.cumsum([0, *(s.tokens for s in shards)])
        self.tokens = offset

    @property
    def documents(self) -> int:
        return len(self.bounds) - 1

    def gather(self, index: np.ndarray[Any, np.dtype[np.int64]]) -> Tokens:
        """The tokens at these places, int64."""
        out = np.empty(len(index), np.int64)
        if len(self._tokens) == 1:
            out[:] = self._tokens[0][index]
        else:
            shard = np.searchsorted(self._shard_begin, index, side="right") - 1
            for s in np.unique(shard):
                here = shard == s
                out[here] = self._tokens[s][index[here] - self._shard_begin[s]]
        if len(out) and out.max() >= self.vocab_size:
            raise DataError(f"tokens must be below {self.vocab_size=}, but {self.name!r} holds {out.max()}; remove the folder and prepare it again")
        return out


class ShardFolder:
    """An opened folder of shards. Truncated or altered files are refused here, before training starts."""

    def __init__(self, folder: Path, verify: bool = True) -> None:
        self.folder = folder
        try:
            self.meta = Meta.model_validate_json(read_small(folder / "meta.json", _META_BYTES))
        except OSError as error:
            raise DataError(f"a folder of token shards must hold a readable meta.json, but got {str(folder)!r}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise DataError(f"{str(folder / 'meta.json')!r} must be as `hymo data prepare` wrote it, but {where}: {first['msg']}") from None
        width = np.dtype(self.meta.dtype).itemsize
        for shard in [*self.meta.train, *self.meta.validation]:
            self._check(f"{shard.stem}.bin", shard.tokens * width, shard.sha256 if verify else None)
            self._check(f"{shard.stem}.ends", shard.documents * 8, shard.ends_sha256 if verify else None)
        self.train = TokenStore(folder, self.meta.train, self.meta)
        self.validation = TokenStore(folder, self.meta.validation, self.meta)

    def _check(self, name: str, size: int, sha256: str | None) -> None:
        file = self.folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            but = "is missing" if found is None else f"holds {found}"
            raise DataError(f"shard {str(file)!r} must hold {size} bytes, but {but}; remove its folder and prepare it again")
        if sha256 is not None and file_digest(file) != sha256:
            raise DataError(f"shard {str(file)!r} must hold what meta.json says, but its content has changed; remove its folder and prepare it again")
