from pathlib import Path

import pytest

from hymo.data.tokenizer import JsonTokenizer, read_tokenizer
from hymo.data.train_tokenizer import save_tokenizer, train_tokenizer
from hymo.errors import DataError

TEXT = "the cat sat on the mat; the other cat sat on the other mat. Käse, naïveté, 猫! " * 20


@pytest.fixture(scope="module")
def trained() -> JsonTokenizer:
    return train_tokenizer([TEXT.encode()], 280)


def test_a_trained_one_is_bytes_then_the_mark_then_merges(trained: JsonTokenizer):
    assert trained.vocab_size == 280
    assert trained.token_bytes[:256] == [bytes([b]) for b in range(256)]
    assert trained.eot_id == 256
    assert trained.token_bytes[256] == b""
    known = set(trained.token_bytes[:256])
    for token in trained.token_bytes[257:]:         # each merge joins two tokens that were there before it
        assert any(token[:i] in known and token[i:] in known for i in range(1, len(token)))
        known.add(token)
    assert b" the" in known
    assert len(trained.encode(TEXT)) < len(TEXT.encode()) / 2


def test_the_first_merge_is_the_most_frequent_pair():
    text = b"ababab ac ab xy"        # pairs inside words: ab 4, ba 2, " a" 2
    assert train_tokenizer([text], 258).token_bytes[257] == b"ab"


def test_training_is_deterministic_and_stops_when_nothing_repeats(trained: JsonTokenizer):
    assert train_tokenizer([TEXT.encode()], 280).fingerprint == trained.fingerprint
    assert train_tokenizer([b"abcdefg"], 1000).vocab_size == 257


def test_training_reads_no_more_than_told():
    seen: list[int] = []
    tokenizer = train_tokenizer([b"aaaa bbbb", b"cccc cccc cccc"], 300, max_bytes=9, progress=seen.append)
    assert seen == [9]
    assert not any(b"cc" in token for token in tokenizer.token_bytes)


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(DataError, match=r"at least 257 entries .* but got vocab_size=256"):
        train_tokenizer([b"a"], 256)


def test_file_round_trip_in_the_library_s_own_words(trained: JsonTokenizer, tmp_path: Path):
    from tokenizers import Tokenizer as Library

    save_tokenizer(trained, tmp_path / "new" / "tokenizer.json")
    again = read_tokenizer(tmp_path / "new")
    assert again.fingerprint == trained.fingerprint
    assert again.encode(TEXT) == trained.encode(TEXT) == Library.from_file(str(tmp_path / "new" / "tokenizer.json")).encode(TEXT).ids
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["tokenizer.json"]
