from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hymo.recipe.tree import DataConfig, EvalConfig, RunConfig, TrainConfig


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HYMO_CACHE", str(folder))
    return folder


@pytest.fixture
def recipe():
    """The part of a recipe that data reads, by dotted keys: recipe(source=…, seq_len=…, seed=…)."""

    def make(*, seq_len: int = 16, steps: int = 1, eval_tokens: int = 256, seed: int = 0, vocab_size: int = 257, **data: Any) -> Any:
        return SimpleNamespace(
            data=DataConfig(**data),
            train=TrainConfig(steps=steps, seq_len=seq_len, tokens_per_step=8 * seq_len),
            eval=EvalConfig(tokens=eval_tokens),
            run=RunConfig(seed=seed),
            model=SimpleNamespace(vocab_size=vocab_size),
        )

    return make


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Forty small text files of different length and content."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02d}.txt").write_text(f"file {i} says: " + "word " * (i % 7) + "\n" * (i % 3))
    return folder
