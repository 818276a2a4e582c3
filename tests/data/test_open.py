import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hymo.data import open_data
from hymo.errors import DataError


def test_builtin_with_bytes_is_the_default(recipe):
    data = open_data(recipe(seq_len=256, eval_tokens=65_536))
    assert data.train_tokens is not None
    assert 5_000_000 < data.train_tokens < 40_000_000
    assert data.summary["train_tokens"] == data.train_tokens
    assert data.summary["fingerprint"] == data.fingerprint
    assert str(data.summary["python"]).startswith("3.")
    batch = data.train().take(8)
    assert batch.tokens.shape == (8, 257)
    assert batch.tokens.dtype == torch.int64
    assert batch.documents.dtype == torch.int32


def test_a_validation_source_of_its_own(recipe, corpus: Path, tmp_path: Path):
    (tmp_path / "held.txt").write_text("held out")
    data = open_data(recipe(source=str(corpus), validation=str(tmp_path / "held.txt")))
    assert data.summary["train_documents"] == 40
    (batch,) = data.validation(8)
    assert data.tokenizer.decode(batch.tokens[0, :9].tolist()) == "held out"


@pytest.mark.parametrize("text", ["a", "ab", "one line\n", "two\nlines\n"])
def test_tiny_files(recipe, tmp_path: Path, text: str):
    """One letter has no tail to hold out; two letters make two documents of a letter each."""
    (tmp_path / "tiny.txt").write_text(text)
    r = recipe(source=str(tmp_path / "tiny.txt"), max_epochs=1e9)
    if len(text) == 1:
        with pytest.raises(DataError, match=r"there must be text to train on, but the training side of .* is empty"):
            open_data(r)
        return
    data = open_data(r)
    batch = data.train().take(6)
    assert batch.tokens.shape == (6, 17)
    read = data.tokenizer.decode(batch.tokens[0][batch.documents[0] != -1].tolist())
    (validation,) = data.validation(4)
    assert read + data.tokenizer.decode(validation.tokens[0][validation.documents[0] != -1].tolist()) == text


def test_a_tokenizer_larger_than_the_model_is_refused(recipe, corpus: Path):
    with pytest.raises(DataError, match=r"model.vocab_size must be at least the 257 of tokenizer 'bytes', but got 256; set model.vocab_size=257"):
        open_data(recipe(source=str(corpus), vocab_size=256))


def test_the_fingerprint_follows_all_that_decides_the_tokens(recipe, corpus: Path):
    changes = [{}, {"validation_frac": 0.3}, {"tokenizer": "auto:270"}, {"validation": str(corpus / "00.txt")}, {"source": str(corpus / "*1.txt")}]
    prints = [open_data(recipe(**{"source": str(corpus), "vocab_size": 300, **change})).fingerprint for change in changes]
    assert len(set(prints)) == len(changes)
    assert open_data(recipe(source=str(corpus), vocab_size=300, seed=4, seq_len=8)).fingerprint == prints[0]      # a run's own business


def test_shuffle_false_keeps_the_source_s_order(recipe, corpus: Path):
    data = open_data(recipe(source=str(corpus), shuffle=False))
    text = data.tokenizer.decode(data.train().take(8).inputs.flatten().tolist())
    files = sorted(corpus.iterdir())
    assert text.startswith(files[0].read_text() if files[0].read_text() in text else files[1].read_text())
    numbers = [int(piece.split()[0]) for piece in text.split("file ")[1:-1]]
    assert numbers == sorted(numbers)


def test_heavy_libraries_are_imported_only_when_used():
    """Preparing data needs no torch; nothing needs `datasets` before a stream is opened."""
    code = (
        "import sys\n"
        "def heavy(): return sorted({'datasets', 'tokenizers', 'pyarrow', 'mlflow', 'torch'} & set(sys.modules))\n"
        "import hymo.data, hymo.data.prepare, hymo.data.train_tokenizer; print(heavy())\n"
        "import hymo.data.open; print(heavy())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines() == ["[]", "['torch']"], result.stderr


def test_the_damage_of_a_cached_shard_is_noticed(recipe, corpus: Path, cache: Path):
    r = recipe(source=str(corpus))
    open_data(r)
    (file,) = (cache / "tokens").glob("*/train-00000.bin")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"must hold \d+ bytes, but holds \d+; remove its folder and prepare it again"):
        open_data(r)
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(DataError, match=r"must hold what meta.json says, but its content has changed; remove its folder"):
        open_data(r)
