import json
import os
from pathlib import Path

import numpy as np
import pytest

from hymo.data import open_data
from hymo.data.prepare import prepare
from hymo.data.shards import ShardFolder, token_dtype
from hymo.errors import DataError
from hymo.recipe.tree import DataConfig


@pytest.fixture
def prepared(corpus: Path, tmp_path: Path) -> Path:
    """The corpus in several small shards."""
    prepare(DataConfig(source=str(corpus), validation_frac=0.1), tmp_path / "out", shard_tokens=1)
    return tmp_path / "out"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hymo.data.shards._BATCH_BYTES", 300)


def test_documents_come_back_from_many_shards(prepared: Path, corpus: Path):
    folder = ShardFolder(prepared)
    assert len(folder.meta.train) > 2
    texts = []
    for store in (folder.train, folder.validation):
        assert store.bounds[-1] == store.tokens == store.gather(np.arange(store.tokens)).shape[0]
        for begin, end in zip(store.bounds, store.bounds[1:], strict=False):
            document = store.gather(np.arange(begin, end))
            assert document[-1] == 256          # <|endoftext|> belongs to its document
            assert 256 not in document[:-1]
            texts.append(bytes(document[:-1].tolist()))
    assert folder.validation.documents == 4
    assert sorted(texts) == sorted(f.read_bytes() for f in corpus.iterdir())
    assert folder.meta.text_bytes == sum(map(len, texts))


def test_training_on_shards_equals_training_on_their_text(recipe, prepared: Path, corpus: Path):
    from_text = open_data(recipe(source=str(corpus), validation_frac=0.1))
    from_shards = open_data(recipe(source=str(prepared)))
    assert from_text.train_tokens == from_shards.train_tokens
    for _ in range(3):
        a, b = from_text.train().take(16), from_shards.train().take(16)
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.documents.tolist() == b.documents.tolist()
    assert [b.tokens.tolist() for b in from_text.validation(4)] == [b.tokens.tolist() for b in from_shards.validation(4)]


def test_token_widths():
    assert token_dtype(65_536) == "uint16"
    assert token_dtype(65_537) == "uint32"


@pytest.mark.parametrize("suffix", ["bin", "ends"])
def test_truncated_missing_and_altered_shards_are_refused(recipe, prepared: Path, suffix: str):
    file = prepared / f"train-00001.{suffix}"
    content = file.read_bytes()
    file.write_bytes(content[:-2])
    with pytest.raises(DataError, match=rf"train-00001.{suffix}' must hold {len(content)} bytes, but holds {len(content) - 2}"):
        open_data(recipe(source=str(prepared)))
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(DataError, match=rf"train-00001.{suffix}' must hold what meta.json says"):
        open_data(recipe(source=str(prepared)))
    os.unlink(file)
    with pytest.raises(DataError, match=rf"train-00001.{suffix}' must hold {len(content)} bytes, but is missing"):
        open_data(recipe(source=str(prepared)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format: "),
        ({"surprise": 1}, "surprise: "),
        ({"vocab_size": -1}, "vocab_size: "),
        ({"train": [{"stem": "../../etc/passwd", "tokens": 1, "documents": 1, "sha256": "", "ends_sha256": ""}]}, "train.0.stem: "),
    ],
)
def test_a_meta_that_prepare_did_not_write_is_refused(recipe, prepared: Path, change: dict, message: str):
    meta = json.loads((prepared / "meta.json").read_text())
    (prepared / "meta.json").write_text(json.dumps({**meta, **change}))
    with pytest.raises(DataError, match=f"must be as `hymo data prepare` wrote it, but {message}"):
        open_data(recipe(source=str(prepared)))


def test_tokens_outside_the_vocabulary_are_refused(prepared: Path):
    meta = json.loads((prepared / "meta.json").read_text())
    (prepared / "meta.json").write_text(json.dumps({**meta, "vocab_size": 100}))
    folder = ShardFolder(prepared)
    with pytest.raises(DataError, match=r"tokens must be below self.vocab_size=100, but '.*' holds \d+"):
        folder.train.gather(np.arange(folder.train.tokens))


def test_ends_that_do_not_rise_are_refused(prepared: Path):
    file = prepared / "train-00000.ends"
    file.write_bytes(np.frombuffer(file.read_bytes(), "<i8")[::-1].tobytes())
    with pytest.raises(DataError, match=r"document ends must rise"):
        ShardFolder(prepared, verify=False)


def test_another_tokenizer_than_the_shards_own_is_refused(recipe, corpus: Path, tmp_path: Path):
    out = tmp_path / "bpe"
    prepare(DataConfig(source=str(corpus), tokenizer="auto:280"), out)
    with pytest.raises(DataError, match=r"prepared with, but got 'bytes'; set data.tokenizer=.*tokenizer.json"):
        open_data(recipe(source=str(out), vocab_size=300))
    data = open_data(recipe(source=str(out), vocab_size=300, tokenizer=str(out / "tokenizer.json")))
    assert data.tokenizer.vocab_size <= 280
    batch = data.train().take(8)
    assert "file" in data.tokenizer.decode(batch.tokens.flatten().tolist())
