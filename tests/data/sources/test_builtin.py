import json
from pathlib import Path

import pytest

from hymo.data.sources import Builtin
from hymo.errors import DataError


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
