import errno
import json
import os
import time
from pathlib import Path

import pytest

from hymo.data.sources import Builtin, open_text
from hymo.data.sources.listing import list_files
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


def test_globs(tmp_path: Path):
    for name in ("a/1.txt", "a/b/2.txt", "a/b/3.md", "c[1]/4.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    matches = {"*/*.txt": ["a/1.txt", "c[1]/4.txt"], "**/*.txt": ["a/1.txt", "a/b/2.txt", "c[1]/4.txt"], "a/**/?.md": ["a/b/3.md"]}
    for pattern, files in matches.items():
        assert [f.relative_to(tmp_path).as_posix() for f in list_files(f"{tmp_path}/{pattern}")] == files
    assert list_files(f"{tmp_path}/c[1]/4.txt") == [tmp_path / "c[1]/4.txt"]        # a file that exists is no glob


def test_the_fingerprint_follows_content_not_place(tmp_path: Path):
    for folder, text in (("one", "x"), ("two", "x"), ("three", "y")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(text)
    one, two, three = (open_text(str(tmp_path / f), "text").fingerprint for f in ("one", "two", "three"))
    assert one == two != three


def test_builtin_is_the_standard_library_without_its_tests():
    source = Builtin()
    documents = list(source.documents())
    assert Path(json.__file__).read_bytes() in documents
    assert b"" not in documents
    total = sum(map(len, documents))
    assert 5_000_000 < total < 40_000_000
    assert source.fingerprint == Builtin().fingerprint
    assert source.summary["python"].startswith("3.")


def test_builtin_leaves_out_tests_and_what_differs_by_machine(tmp_path: Path):
    left_out = ("test/a.py", "x/tests/b.py", "site-packages/c.py", "_sysconfigdata__linux_.py", "config-3.11-x/d.py", "notes.txt")
    for name in ("os.py", "x/e.py", *left_out):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(Builtin(tmp_path).documents()) == [b"os.py", b"x/e.py"]
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"data.source=builtin needs the .py files"):
        list(Builtin(tmp_path / "none").documents())


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


def test_missing_sources_are_refused(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for spec, message in {
        str(tmp_path / "none.txt"): "readable file, folder or glob, but got .*: No such file",
        str(tmp_path / "*.md"): "the glob matches no file",
        str(tmp_path / "**" / "*.md"): "the glob matches no file",
        str(tmp_path / "empty"): "the folder holds no file",
        "a\0b": "data.source must be a path",
        "": "data.source must name a source, but got ''",
        "/dev/null": "must be a regular file, folder or glob",
    }.items():
        with pytest.raises(DataError, match=message):
            texts(spec)


def test_loops_of_links_are_refused_at_once(tmp_path: Path):
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "self.txt").symlink_to(root / "self.txt")
    began = time.monotonic()
    with pytest.raises(DataError, match=r"must lead to a file or folder|loop|Too many levels"):
        texts(root)
    with pytest.raises(DataError, match=r"Too many levels"):
        texts(root / "self.txt")
    (root / "self.txt").unlink()
    for i in range(3):                                      # three loops: 3^40 paths to whoever follows them
        (root / "a" / f"up{i}").symlink_to(root)
    for spec in (str(root), f"{root}/**/*.txt"):
        with pytest.raises(DataError, match=r"must not hold a link to a folder above it"):
            texts(spec)
    assert time.monotonic() - began < 5


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
