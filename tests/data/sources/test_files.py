import errno
import os
from pathlib import Path

import pytest

from hymo.data.sources import open_text
from hymo.errors import DataError


def texts(source: Path | str, field: str = "text") -> list[bytes]:
    return list(open_text(str(source), field).documents())


def parquet(path: Path, columns: dict) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


# -- what is read ---------------------------------------------------------------------------------------------------------------------


def test_a_text_file_is_a_document(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("Käse\r\n".encode())
    assert texts(tmp_path / "a.txt") == ["Käse\r\n".encode()]


def test_a_folder_is_read_sorted_with_links_without_hidden_or_empty_files(tmp_path: Path):
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / ".git").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "z.txt").write_text("linked")
    for name, text in {"b.md": "b", "sub/a.txt": "a", "empty.txt": "", ".hidden": "no", ".git/x": "no"}.items():
        (root / name).write_text(text)
    (root / "a").symlink_to(elsewhere)
    assert texts(root) == [b"linked", b"b", b"a"]


def test_jsonl_lines_are_documents(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": "one", "n": 1}\n\n{"text": "zw\\u00f6lf"}\n{"text": ""}')
    assert texts(tmp_path / "a.jsonl") == [b"one", "zwölf".encode()]
    (tmp_path / "b.jsonl").write_text('{"body": "\\ud800"}')
    assert texts(tmp_path / "b.jsonl", "body") == [b"\xed\xa0\x80"]


def test_parquet_rows_are_documents(tmp_path: Path):
    rows = [f"row {i}" for i in range(3000)]
    file = parquet(tmp_path / "a.parquet", {"text": rows, "other": list(range(3000))})
    assert texts(file) == [r.encode() for r in rows]


def test_the_fingerprint_follows_content_not_place(tmp_path: Path):
    for folder, text in (("one", "x"), ("two", "x"), ("three", "y")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(text)
    one, two, three = (open_text(str(tmp_path / f), "text").fingerprint for f in ("one", "two", "three"))
    assert one == two != three


# -- what is refused ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"text\0more", r"must hold text, but '.*a.txt' is binary \(a zero byte at 4\)"),
        ("a.txt", b"caf\xe9", r"must be UTF-8, but '.*a.txt' is not \(byte 3:"),
        ("a.jsonl", b'{"text": "x"}\n{"body": "x"}\n', r"a.jsonl:2: the text must be in field 'text' \(data.field\), but got fields \['body'\]"),
        ("a.jsonl", b'{"txt": "x"}', r"a.jsonl:1: .*; did you mean 'txt'\?"),
        ("a.jsonl", b'{"text": 3}', r"a.jsonl:1: field 'text' must be a string, but got int"),
        ("a.jsonl", b'["text"]', r"a.jsonl:1: each line must be a JSON object, but got a list"),
        ("a.jsonl", b'{"text": "x"}\n{"text": ', r"a.jsonl:2: each line must be a JSON object"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl:1: each line must be a JSON object, .* nested too deeply"),
        ("a.jsonl", b'{"text": "\xff"}', r"a.jsonl:1: each line must be a JSON object"),
        ("a.parquet", b"PAR1 and then nothing", r"a Parquet file must be whole, but '.*a.parquet' cannot be read"),
        ("a.parquet", b"", r"a Parquet file must be whole"),
    ],
)
def test_bad_content_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        texts(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_bad_parquet_columns_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"must be in column 'text' \(data.field\), but got columns \['test'\]; did you mean 'test'\?"):
        texts(parquet(tmp_path / "a.parquet", {"test": ["x"]}))
    with pytest.raises(DataError, match=r"column 'text' must hold strings, but got int64"):
        texts(parquet(tmp_path / "b.parquet", {"text": [1]}))
    with pytest.raises(DataError, match=r"must hold a string in every row, but row 2 is null"):
        texts(parquet(tmp_path / "c.parquet", {"text": ["x", None]}))


def test_a_truncated_parquet_file_is_refused(tmp_path: Path):
    file = parquet(tmp_path / "a.parquet", {"text": ["some text"] * 1000})
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"a Parquet file must be whole"):
        texts(file)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_unreadable_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    def denied(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    (tmp_path / name).write_text("x")
    monkeypatch.setattr(Path, "open", denied)
    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(DataError, match=f"must be readable, but got .*{name}.*Permission denied"):
        texts(tmp_path / name)
    with pytest.raises(DataError, match=f"must be readable, but got .*{name}.*Permission denied"):
        _ = open_text(str(tmp_path / name), "text").fingerprint
