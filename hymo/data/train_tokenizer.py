"""Training a byte-level BPE (Sennrich et al. 2016, arXiv 1508.07909, over bytes as in GPT-2)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hymo.data.cache import said_plainly
from hymo.data.tokenizer import END_OF_TEXT, JsonTokenizer, byte_alphabet
from hymo.errors import DataError

SMALLEST = 257                      # 256 bytes and <|endoftext|>
MAX_BYTES = 256 * 1024 * 1024       # text read by default; merges hardly change beyond


def train_tokenizer(
    documents: Iterable[bytes], vocab_size: int, *, max_bytes: int = MAX_BYTES, name: str = "trained", progress: Callable[[int], None] | None = None
) -> JsonTokenizer:
    """A BPE of at most `vocab_size` entries from the first `max_bytes` of text: ids 0–255 are the bytes, 256 is `<|endoftext|>`, then the merges.

    Small texts run out of pairs that occur twice; the tokenizer is then smaller than asked. Bytes that are not UTF-8 are passed over while
    training, never while encoding. `progress` is told the bytes read so far. Deterministic.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < SMALLEST:
        raise DataError(f"a byte-level tokenizer must have at least {SMALLEST} entries (256 bytes and {END_OF_TEXT}), but got {vocab_size=}")

    def texts() -> Iterator[str]:
        read = 0
        for document in documents:
            text = document[: max_bytes - read]
            read += len(text)
            yield text.decode("utf-8", "ignore")
            if progress:
                progress(read)
            if read >= max_bytes:
                return

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        # one entry less: the end-of-text token takes no part in learning
        vocab_size=vocab_size - 1, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False
    )
    learner.train_from_iterator(texts(), trainer)
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    vocabulary = {character: byte for byte, character in enumerate(byte_alphabet())} | {END_OF_TEXT: SMALLEST - 1}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    result = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    result.pre_tokenizer = learner.pre_tokenizer
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens([END_OF_TEXT])
    return JsonTokenizer(result.to_str(pretty=True), name)


def save_tokenizer(tokenizer: JsonTokenizer, path: Path) -> None:
    """Write `path` whole or not at all."""
    with said_plainly(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(tokenizer.text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
