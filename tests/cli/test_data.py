import json
import re

import pytest

from hymo.data.tokenizer import read_tokenizer


@pytest.fixture
def text(tmp_path):
    """Forty small documents."""
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"document {i}: the quick brown fox jumps over the lazy dog. " * 20)
    return folder


def test_info_says_what_a_recipe_reads(hymo, text):
    found = hymo("data", "info", "--scale", "tiny", f"data.source={text}")
    assert found.code == 0, found.err
    lines = [re.fullmatch(r"(\S+ +)(\S.*)", line) for line in found.out.splitlines()]
    assert len({len(line[1]) for line in lines}) == 1, "the values stand in one column"
    shown = [(line[1].rstrip(), line[2]) for line in lines]
    assert len(dict(shown)) == len(shown), "nothing is said twice"
    assert ("source", str(text)) in shown
    machine = json.loads(hymo("data", "info", "--scale", "tiny", f"data.source={text}", "--json").out)
    assert ("fingerprint", machine["fingerprint"]) in shown
    assert 0 < machine["train_tokens"] < 40 * 20 * 70


def test_prepared_shards_hold_the_same_tokens_as_the_text(hymo, text):
    found = hymo("data", "prepare", "--scale", "tiny", f"data.source={text}", "--out", "shards")
    assert found.code == 0, found.err
    assert "data.source=shards" in found.out
    tokens = [
        json.loads(hymo("data", "info", "--scale", "tiny", f"data.source={source}", "--json").out)["train_tokens"] for source in (text, "shards")
    ]
    assert tokens[0] == tokens[1]
    again = hymo("data", "prepare", "--scale", "tiny", f"data.source={text}", "--out", "shards")
    assert again.code == 2
    assert "must be new" in again.err


def test_a_tokenizer_is_trained_and_round_trips_any_bytes(hymo, text, tmp_path):
    found = hymo("tokenizer", "train", "--scale", "tiny", f"data.source={text}", "--vocab-size", "300", "--out", "tok.json")
    assert found.code == 0, found.err
    trained = read_tokenizer(str(tmp_path / "tok.json"))
    assert 257 < trained.vocab_size <= 300
    sample = "the quick brown fox, and ein Zaubertränkchen"
    assert trained.decode(trained.encode(sample)) == sample
    assert len(trained.encode(sample)) < len(sample.encode())
    again = hymo("tokenizer", "train", "--scale", "tiny", f"data.source={text}", "--vocab-size", "300", "--out", "tok.json")
    assert again.code == 2
    assert "must be new, but 'tok.json' exists" in again.err


@pytest.mark.parametrize("words", ["data prepare", "tokenizer train --out a", "tokenizer train --vocab-size 9 --out a"])
def test_a_missing_or_impossible_option_is_exit_code_2(hymo, words):
    assert hymo(*words.split()).code == 2
