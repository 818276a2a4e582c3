import json

import pytest
from tokenizers import Tokenizer as Library

from hymo.data.synthetic import Numbers
from hymo.data.tokenizer import BytesTokenizer
from hymo.export.tokenizer import specification, tokenizer_files

TEXTS = ["def f(x):\n    return x\n", "naïve größe 猫 🙂\t ", "  two  spaces", "<|endoftext|>", "\x00\x7f", ""]


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_exported_tokenizer_gives_the_same_numbers(kind, merged):
    ours = BytesTokenizer() if kind == "bytes" else merged.tokenizer
    theirs = Library.from_str(specification(ours))
    theirs.encode_special_tokens = True     # what split_special_tokens of tokenizer_config.json asks for
    for text in TEXTS:
        assert theirs.encode(text).ids == ours.encode(text), text
        assert theirs.decode(ours.encode(text)) == text


def test_numbers_are_words():
    theirs = Library.from_str(specification(Numbers(40)))
    assert theirs.encode("3 17 2").ids == [3, 17, 2]


def test_the_config_names_the_end_of_text(merged):
    config = json.loads(tokenizer_files(merged.tokenizer, 64)["tokenizer_config.json"])
    assert (config["eos_token"], config["model_max_length"], config["split_special_tokens"]) == ("<|endoftext|>", 64, True)
    assert tokenizer_files(merged.tokenizer, 64)["tokenizer.json"] == merged.tokenizer.text
    assert "eos_token" not in json.loads(tokenizer_files(Numbers(9), 64)["tokenizer_config.json"])
