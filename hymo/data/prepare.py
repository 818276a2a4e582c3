"""Text to token shards: one way for the cache and for `hymo data prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hymo.data.cache import build_once, digest, write_folder
from hymo.data.shards import Meta, Progress, ShardFolder, token_dtype, write_split
from hymo.data.sources import TextSource, open_text
from hymo.data.split import ByContent, Separate, Sides
from hymo.data.tokenizer import BytesTokenizer, JsonTokenizer, Tokenizer, read_tokenizer
from hymo.data.train_tokenizer import MAX_BYTES, SMALLEST, save_tokenizer, train_tokenizer
from hymo.errors import DataError

if TYPE_CHECKING:
    from hymo.recipe.tree import DataConfig

SHARD_TOKENS = 100_000_000


def open_sides(data: DataConfig) -> Sides:
    """What to train on and what to hold out."""
    source = _text(data.source, data)
    return ByContent(source, data.validation_frac) if data.validation is None else Separate(source, _text(data.validation, data))


def _text(source: str, data: DataConfig) -> TextSource:
    if source.startswith("synthetic:"):
        raise DataError(f"a source of text is needed here, but got {source!r}")
    if is_shards(source):
        raise DataError(f"a source of text is needed here, but {source!r} holds tokens already")
    return open_text(source, data.field)


def is_shards(source: str) -> bool:
    """Whether `source` is a folder of token shards."""
    try:
        return (Path(source).expanduser() / "meta.json").is_file()
    except (OSError, ValueError):
        return False


def open_tokenizer(data: DataConfig, sides: Sides) -> Tokenizer:
    """`bytes`, a tokenizer.json, or `auto:N`: trained on the training text the first time and kept in the cache folder."""
    if data.tokenizer == "bytes":
        return BytesTokenizer()
    if not data.tokenizer.startswith("auto:"):
        return read_tokenizer(data.tokenizer)
    size = data.tokenizer.removeprefix("auto:").replace("_", "")
    if not (size.isascii() and size.isdigit()) or int(size) < SMALLEST:
        raise DataError(f"data.tokenizer=auto:N must have a whole N of at least {SMALLEST}, but got {data.tokenizer!r}")

    def build(folder: Path) -> None:
        save_tokenizer(train_tokenizer(sides.train(), int(size)), folder / "tokenizer.json")

    folder = build_once("tokenizers", digest("bpe", sides.fingerprint, int(size), MAX_BYTES), build)
    return JsonTokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"), data.tokenizer)


def write_shards(
    folder: Path,
    sides: Sides,
    tokenizer: Tokenizer,
    *,
    train_tokens: int | None = None,
    validation_tokens: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    progress: Progress | None = None,
) -> None:
    """Fill `folder` with both sides, their meta.json and the tokenizer. The limits stop a side early; 0 leaves it out."""
    read = iter(()) if train_tokens == 0 else sides.train()
    train, train_bytes = write_split(folder, "train", read, tokenizer, shard_tokens, train_tokens, progress)
    validation, validation_bytes = write_split(folder, "validation", sides.validation(), tokenizer, shard_tokens, validation_tokens, progress)
    meta = Meta(
        source=sides.train_source.name,
        source_fingerprint=sides.fingerprint,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        dtype=token_dtype(tokenizer.vocab_size),
        text_bytes=train_bytes + validation_bytes,
        train=train,
        validation=validation,
    )
    (folder / "meta.json").write_text(meta.model_dump_json(indent=1), encoding="utf-8")
    if isinstance(tokenizer, JsonTokenizer):
        save_tokenizer(tokenizer, folder / "tokenizer.json")


def prepare(
    data: DataConfig,
    out: Path,
    *,
    train_tokens: int | None = None,
    validation_tokens: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    progress: Progress | None = None,
) -> Meta:
    """Write the source of `data` as a folder of token shards that `data.source` can name: `hymo data prepare`.

    The limits stop each side early (a stream may need them). `progress` is told the documents and tokens written of the current side. The folder
    appears whole or not at all; one that exists is never overwritten. Raises DataError.
    """
    if out.exists():
        raise DataError(f"the output folder must be new, but {str(out)!r} exists; name another, or remove it")
    sides = open_sides(data)
    tokenizer = open_tokenizer(data, sides)

    def build(folder: Path) -> None:
        write_shards(
            folder, sides, tokenizer, train_tokens=train_tokens, validation_tokens=validation_tokens, shard_tokens=shard_tokens, progress=progress
        )

    write_folder(out, build)
    return ShardFolder(out, verify=False).meta
