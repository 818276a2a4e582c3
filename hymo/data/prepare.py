"""Text to token shards: the cache's and `hymo data prepare`'s one way."""

from __future__ import annotations

from pathlib import Path

from hymo.data.shards import Meta, Progress, token_dtype, write_split
from hymo.data.sources import Builtin, TextSource
from hymo.data.split import Split
from hymo.data.tokenizer import BytesTokenizer, Tokenizer, read_tokenizer
from hymo.errors import DataError
from hymo.recipe.tree import DataConfig

SHARD_TOKENS = 100_000_000


def open_source(source: str, field: str) -> TextSource:
    """The finite text source of this name."""
    if source == "builtin":
        return Builtin()
    raise DataError(f"data.source must be builtin, but got {source!r}")


def open_tokenizer(data: DataConfig) -> Tokenizer:
    """The tokenizer of this name."""
    return BytesTokenizer() if data.tokenizer == "bytes" else read_tokenizer(data.tokenizer)


def write_shards(folder: Path, data: DataConfig, source: TextSource, tokenizer: Tokenizer, shard_tokens: int = SHARD_TOKENS, progress: Progress | None = None) -> None:
    """Fill `folder` with both sides of the split and their meta.json."""
    split = Split(source.documents(), data.validation_frac, source.name)
    train, train_bytes = write_split(folder, "train", split.train(source.documents()), tokenizer, shard_tokens, progress)
    validation, validation_bytes = write_split(folder, "validation", split.validation(source.documents()), tokenizer, shard_tokens, progress)
    meta = Meta(
        source=data.source, source_fingerprint=source.fingerprint, tokenizer=tokenizer.name, tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size, dtype=token_dtype(tokenizer.vocab_size), text_bytes=train_bytes + validation_bytes, train=train, validation=validation,
    )
    (folder / "meta.json").write_text(meta.model_dump_json(indent=1))
