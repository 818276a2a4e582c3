"""A run's tokenizer as transformers knows tokenizers: tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from typing import Any

from hymo.data.synthetic import Numbers
from hymo.data.tokenizer import END_OF_TEXT, BytesTokenizer, JsonTokenizer, Tokenizer, byte_alphabet
from hymo.errors import HymoError


def tokenizer_files(tokenizer: Tokenizer, max_length: int) -> dict[str, str]:
    """{file name: text}. `<|endoftext|>` ends a text and pads a batch; written out inside a text it is text, as in training."""
    end = end_token(tokenizer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        **({} if end is None else {"eos_token": end, "pad_token": end}),
    }
    return {"tokenizer.json": specification(tokenizer), "tokenizer_config.json": json.dumps(config, indent=2) + "\n"}


def end_token(tokenizer: Tokenizer) -> str | None:
    """How the end-of-text token is written; None where there is none."""
    if isinstance(tokenizer, Numbers):
        return None
    if isinstance(tokenizer, BytesTokenizer):
        return END_OF_TEXT
    return next(str(token["content"]) for token in json.loads(specification(tokenizer))["added_tokens"] if token["id"] == tokenizer.eot_id)


def specification(tokenizer: Tokenizer) -> str:
    """The tokenizer.json: a run's own as it is, one made here for bytes and for numbers. Raises HymoError for any other kind."""
    if isinstance(tokenizer, JsonTokenizer):
        return tokenizer.text
    if isinstance(tokenizer, BytesTokenizer):
        return json.dumps(byte_level(tokenizer), indent=2) + "\n"
    if isinstance(tokenizer, Numbers):
        return json.dumps(numbers(tokenizer), indent=2) + "\n"
    raise HymoError(f"a tokenizer to export must be bytes, a tokenizer.json or a task's numbers, but got {type(tokenizer).__name__}")


def byte_level(tokenizer: BytesTokenizer) -> dict[str, Any]:
    """Byte b is token b: a byte-level BPE without merges."""
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    end = {"id": tokenizer.eot_id, "content": END_OF_TEXT, **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False), "special": True}
    model = {"type": "BPE", "vocab": {character: byte for byte, character in enumerate(byte_alphabet())}, "merges": []}
    return {**_nothing(), "added_tokens": [end], "pre_tokenizer": split, "decoder": split, "model": model}


def numbers(tokenizer: Numbers) -> dict[str, Any]:
    """The word "17" is token 17."""
    words = {"type": "WordLevel", "vocab": {str(token): token for token in range(tokenizer.vocab_size)}, "unk_token": "<unknown>"}
    return {**_nothing(), "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": words}


def _nothing() -> dict[str, Any]:
    """A tokenizer.json that does nothing yet."""
    parts = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    return {"version": "1.0", "added_tokens": [], **dict.fromkeys(parts)}
