"""Random documents through the whole data path (JSONL, split, tokens, shards, rows): every token comes out once, no row crosses a boundary unsaid."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from hymo.data import Batch, open_data
from hymo.data.batch import PADDING
from hymo.data.loader import RowLoader
from hymo.errors import DataError
from hymo.recipe import Recipe, load_recipe
from tests.fuzz.fuzzing import fuzz

END = 256       # <|endoftext|> of the bytes tokenizer
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), min_size=2, max_size=12)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str], int, bool, int], Recipe]:
    """fresh(texts, seq_len, shuffle, seed): a recipe over a file of these texts."""
    monkeypatch.setenv("HYMO_CACHE", str(tmp_path / "cache"))
    base = load_recipe("v1_0", ["train.tokens_per_step=64", "data.validation_frac=0.3", "data.max_epochs=1000000"], scale="tiny")

    def make(texts: list[str], seq_len: int, shuffle: bool, seed: int) -> Recipe:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        source = tmp_path / f"{hashlib.sha256(lines.encode()).hexdigest()[:16]}.jsonl"
        source.write_text(lines)
        parts = {"data": {"source": str(source), "shuffle": shuffle}, "train": {"seq_len": seq_len}, "run": {"seed": seed}, "eval": {"tokens": 10**6}}
        return base.model_copy(update={part: getattr(base, part).model_copy(update=values) for part, values in parts.items()})

    return make


def inputs(batch: Batch) -> list[list[int]]:
    """What each row gives to read, after a look at its boundaries: the number of the document changes after each end mark, and nowhere else."""
    rows = []
    for tokens, numbers in zip(batch.tokens.tolist(), batch.documents.tolist(), strict=True):
        length = len(tokens) - numbers.count(PADDING)
        assert set(numbers[length:]) <= {PADDING}
        for t in range(1, length):
            assert (numbers[t] != numbers[t - 1]) == (tokens[t - 1] == END)
        rows.append(tokens[: min(length, len(tokens) - 1)])
    return rows


def documents(rows: list[list[int]]) -> Counter[bytes]:
    """The documents that rows in their order are made of."""
    stream = [token for row in rows for token in row]
    assert stream[-1] == END
    ends = [-1, *(i for i, token in enumerate(stream) if token == END)]
    return Counter(bytes(stream[begin + 1 : end]) for begin, end in pairwise(ends))


@fuzz(10, 500, texts=TEXTS, seq_len=st.integers(1, 48), shuffle=st.booleans(), seed=st.integers(0, 99))
def test_every_document_comes_out_once(fresh: Callable[..., Recipe], texts: list[str], seq_len: int, shuffle: bool, seed: int) -> None:
    try:
        data = open_data(fresh(texts, seq_len, shuffle, seed))
        loader = data.train()
    except DataError as error:
        assume("is empty" not in str(error))        # all texts alike: one side has none
        raise
    assert isinstance(loader, RowLoader)
    count = loader.rows.count
    read = inputs(loader.take(count))
    held_out = documents(inputs(data.held_out(np.arange(data.held_out.count))))
    whole = Counter(text.encode() for text in texts)
    trained = whole - held_out
    assert trained + held_out == whole
    assert not trained.keys() & held_out.keys(), "copies of a document lie on one side"
    if not shuffle:
        assert documents(read) == trained
    given = Counter(token for text in trained.elements() for token in [*text, END])
    assert Counter(token for row in read for token in row) == given
    again = Counter(token for row in inputs(loader.take(count)) for token in row)
    assert again == given, "the second epoch reads everything once more"
