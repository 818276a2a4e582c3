import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymo.data import BytesTokenizer
from hymo.data.tokenizer import END_OF_TEXT, JsonTokenizer, byte_alphabet, read_tokenizer
from hymo.data.train_tokenizer import train_tokenizer
from hymo.errors import DataError

TEXT = "the cat sat on the mat; the other cat sat on the other mat. Käse, naïveté, 猫! " * 20


@pytest.fixture(scope="module")
def trained() -> JsonTokenizer:
    return train_tokenizer([TEXT.encode()], 280)


TRAINED = train_tokenizer([TEXT.encode()], 280)


@pytest.mark.parametrize("tokenizer", [BytesTokenizer(), TRAINED], ids=["bytes", "bpe"])
@given(documents=st.lists(st.binary(max_size=60) | st.text(max_size=30).map(str.encode), max_size=4))
def test_any_bytes_come_back(tokenizer, documents: list[bytes]):
    encoded = tokenizer.encode_many(documents)
    assert [tokenizer.decode_bytes(tokens) for tokens in encoded] == documents
    assert all(tokenizer.eot_id not in tokens for tokens in encoded)
    assert [int(tokenizer.bytes_per_token[tokens.astype("int64")].sum()) for tokens in encoded] == [len(d) for d in documents]


@pytest.mark.parametrize("tokenizer", [BytesTokenizer(), TRAINED], ids=["bytes", "bpe"])
@pytest.mark.parametrize("document", [b"\xff\xfe", b"a\x80b", "é".encode()[:1], b"\xed\xa0\x80", b"cat\xed\xa0\x80sat", b"\xf4\x90\x80\x80"])
def test_bytes_that_are_not_utf8_come_back(tokenizer, document: bytes):
    assert tokenizer.decode_bytes(tokenizer.encode_many([document])[0]) == document


@pytest.mark.parametrize("tokenizer", [BytesTokenizer(), TRAINED], ids=["bytes", "bpe"])
def test_the_mark_written_in_a_text_is_text(tokenizer):
    ids = tokenizer.encode(f"a{END_OF_TEXT}b")
    assert tokenizer.eot_id not in ids
    assert tokenizer.decode(ids) == f"a{END_OF_TEXT}b"


def test_bytes_by_hand():
    tokenizer = BytesTokenizer()
    assert tokenizer.encode("hé") == [104, 0xC3, 0xA9]
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (257, 256)
    assert tokenizer.bytes_per_token.tolist() == [1] * 256 + [0]
    assert tokenizer.decode([104, 256, 0xC3]) == "h\ufffd"


def test_long_documents_are_cut_at_lines_and_lose_nothing(trained: JsonTokenizer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hymo.data.tokenizer._PIECE", 50)
    document = b"the cat\nsat \xff on\n" * 9 + "猫".encode() * 60
    assert trained.decode_bytes(trained.encode_many([document])[0]) == document


def test_the_byte_alphabet_is_the_library_s():
    from tokenizers import pre_tokenizers

    assert sorted(byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("é\n ")
    assert pieces[0][0] == "".join(byte_alphabet()[b] for b in "é\n ".encode())


def _changed(trained: JsonTokenizer, **change) -> str:
    return json.dumps({**json.loads(trained.text), **change})


def test_lossy_tokenizers_are_refused(trained: JsonTokenizer):
    with pytest.raises(DataError, match=r"must be byte-level, or text is lost, but got 'x' with pre_tokenizer 'Whitespace'"):
        JsonTokenizer(_changed(trained, pre_tokenizer={"type": "Whitespace"}), "x")
    for pre in (None, 3, {}, {"type": "Sequence", "pretokenizers": None}, {"type": "Sequence", "pretokenizers": ["ByteLevel"]}):
        with pytest.raises(DataError, match=r"must be byte-level"):
            JsonTokenizer(_changed(trained, pre_tokenizer=pre), "x")
    with pytest.raises(DataError, match=r"must be a byte-level BPE, or text is lost, but got 'x' of type 'WordPiece'"):
        JsonTokenizer(_changed(trained, model={**json.loads(trained.text)["model"], "type": "WordPiece"}), "x")
    prefixed = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    with pytest.raises(DataError, match=r"add_prefix_space: true"):
        JsonTokenizer(_changed(trained, pre_tokenizer=prefixed), "x")
    with pytest.raises(DataError, match=r"must have an end-of-text token"):
        JsonTokenizer(_changed(trained, added_tokens=[]), "x")
    spec = json.loads(trained.text)
    del spec["model"]["vocab"]["!"]
    spec["model"]["merges"] = []
    with pytest.raises(DataError, match=r"must hold all 256 bytes, .* without 1 of them"):
        JsonTokenizer(json.dumps(spec), "x")


def test_tokenizers_that_draw_lots_or_glue_pieces_are_refused(trained: JsonTokenizer):
    model = json.loads(trained.text)["model"]
    for key, value in {"dropout": 0.1, "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>"}.items():
        with pytest.raises(DataError, match=rf"must do without {key}, but got 'x' with"):
            JsonTokenizer(_changed(trained, model={**model, key: value}), "x")


def test_normalizers_that_change_text_are_refused(trained: JsonTokenizer):
    with pytest.raises(DataError, match=r"must give text back unchanged, but 'x' does not"):
        JsonTokenizer(_changed(trained, normalizer={"type": "Lowercase"}), "x")
    composed = JsonTokenizer(_changed(trained, normalizer={"type": "NFC"}), "x")       # as published ones have it; keeps composed text
    assert composed.decode(composed.encode("é")) == "é"


@pytest.mark.parametrize("number", [2**24, 2**32 - 1, 5])
def test_numbers_that_are_too_large_or_doubled_are_refused(trained: JsonTokenizer, number: int):
    """A table of 2^32 entries would take the memory of the machine."""
    model = json.loads(trained.text)["model"]
    with pytest.raises(DataError, match=r"each entry a number of its own below 16,777,216"):
        JsonTokenizer(_changed(trained, model={**model, "vocab": {**model["vocab"], "!": number}}), "x")


EMPTY_MODEL = '{"model": {}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}}'


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "3", '{"model": 1}', "[" * 100_000, EMPTY_MODEL])
def test_what_is_no_tokenizer_is_refused_in_one_line(text: str):
    with pytest.raises(DataError, match=r"must be a tokenizer.json") as caught:
        JsonTokenizer(text, "x")
    assert "\n" not in str(caught.value)


def test_missing_and_binary_files_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"`bytes`, `auto:N` or a tokenizer.json that exists, but got"):
        read_tokenizer(tmp_path / "none.json")
    (tmp_path / "t.json").write_bytes(b"\xff\0")
    with pytest.raises(DataError, match=r"readable UTF-8"):
        read_tokenizer(tmp_path / "t.json")
