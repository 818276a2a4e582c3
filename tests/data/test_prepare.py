from pathlib import Path

import numpy as np
import pytest

from hymo.data import open_data
from hymo.data.prepare import prepare
from hymo.errors import DataError
from hymo.recipe.tree import DataConfig


def test_progress_counts_documents_and_tokens(corpus: Path, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    meta = prepare(DataConfig(source=str(corpus)), tmp_path / "out", progress=lambda documents, tokens: seen.append((documents, tokens)))
    train, validation = (sum(s.tokens for s in side) for side in (meta.train, meta.validation))
    assert (38, train) in seen
    assert seen[-1] == (2, validation)
    assert train + validation == meta.text_bytes + 40


def test_limits_stop_a_side_early(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hymo.data.shards._BATCH_BYTES", 1)         # a document at a time
    data = DataConfig(source=str(corpus), validation_frac=0.5)
    whole = prepare(data, tmp_path / "whole")
    limited = prepare(data, tmp_path / "limited", train_tokens=100, validation_tokens=50)
    for limit, side, full in ((100, limited.train, whole.train), (50, limited.validation, whole.validation)):
        ends = np.fromfile(tmp_path / "whole" / f"{full[0].stem}.ends", "<i8")
        assert side[0].tokens == ends[ends >= limit][0]             # the document that reaches the limit is the last


def test_an_output_that_exists_is_never_overwritten(corpus: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match=r"the output folder must be new, but '.*out' exists"):
        prepare(DataConfig(source=str(corpus)), tmp_path / "out")


def test_nothing_is_left_of_a_failed_preparation(corpus: Path, tmp_path: Path):
    (corpus / "39.bin").write_bytes(b"\0")
    with pytest.raises(DataError, match=r"binary"):
        prepare(DataConfig(source=str(corpus)), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corpus"]


@pytest.mark.parametrize("tokenizer", ["auto:x", "auto:", "auto:256", "auto:-300", "auto:1e4", "auto:٣٠٠"])
def test_auto_needs_a_size(recipe, corpus: Path, tokenizer: str):
    with pytest.raises(DataError, match=r"must have a whole N of at least 257, but got 'auto:"):
        open_data(recipe(source=str(corpus), tokenizer=tokenizer))


def test_auto_trains_once_on_training_text_only(recipe, corpus: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    (corpus / "held.txt").write_text("zq" * 500)
    r = recipe(source=str(corpus), tokenizer="auto:280", vocab_size=280)
    tokenizer = open_data(r).tokenizer
    assert tokenizer.name == "auto:280"
    held_out_only = recipe(source=str(corpus / "00.txt"), validation=str(corpus / "held.txt"), tokenizer="auto:280", vocab_size=280)
    assert not any(b"zq" in token for token in open_data(held_out_only).tokenizer.token_bytes)
    monkeypatch.setattr("hymo.data.prepare.train_tokenizer", None)     # calling it again would fail
    assert open_data(r).tokenizer.fingerprint == tokenizer.fingerprint
    assert len(list((cache / "tokenizers").glob("*/tokenizer.json"))) == 2
