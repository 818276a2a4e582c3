"""The contract that every source of text keeps."""

import json
import re
from pathlib import Path

import pytest

from hymo.data.sources import TextSource, open_text


@pytest.fixture(params=["builtin", "text", "jsonl", "parquet", "hub"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> TextSource:
    texts = ["one", "", "zwölf", "one"]
    folder = tmp_path / "texts"
    folder.mkdir()
    if request.param == "text":
        for i, text in enumerate(texts):
            (folder / f"{i}.txt").write_text(text)
    elif request.param == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": texts}), folder / "a.parquet")
    else:
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return open_text({"builtin": "builtin", "hub": f"hf:{folder}"}.get(request.param, str(folder)), "text")


def test_reading_twice_gives_the_same(source: TextSource):
    assert list(source.documents()) == list(source.documents())


def test_no_document_is_empty_and_copies_are_kept(source: TextSource):
    documents = list(source.documents())
    assert b"" not in documents
    if source.name != "builtin":
        assert sorted(documents) == sorted([b"one", "zwölf".encode(), b"one"])


def test_a_fingerprint_a_name_and_a_summary_for_the_log(source: TextSource):
    assert re.fullmatch("[0-9a-f]{16}", source.fingerprint)
    assert source.name
    assert all(isinstance(value, str | int) for value in source.summary.values())


def test_only_the_hub_is_endless(source: TextSource):
    assert source.endless == source.name.startswith("hf:")
