import time
from pathlib import Path

import pytest

from hymo.data.sources.listing import list_files
from hymo.errors import DataError


def test_globs(tmp_path: Path):
    for name in ("a/1.txt", "a/b/2.txt", "a/b/3.md", "c[1]/4.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    matches = {"*/*.txt": ["a/1.txt", "c[1]/4.txt"], "**/*.txt": ["a/1.txt", "a/b/2.txt", "c[1]/4.txt"], "a/**/?.md": ["a/b/3.md"]}
    for pattern, files in matches.items():
        assert [f.relative_to(tmp_path).as_posix() for f in list_files(f"{tmp_path}/{pattern}")] == files
    assert list_files(f"{tmp_path}/c[1]/4.txt") == [tmp_path / "c[1]/4.txt"]        # a file that exists is no glob


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
            list_files(spec)


def test_loops_of_links_are_refused_at_once(tmp_path: Path):
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "self.txt").symlink_to(root / "self.txt")
    began = time.monotonic()
    with pytest.raises(DataError, match=r"must lead to a file or folder|loop|Too many levels"):
        list_files(str(root))
    with pytest.raises(DataError, match=r"Too many levels"):
        list_files(str(root / "self.txt"))
    (root / "self.txt").unlink()
    for i in range(3):                                      # three loops: 3^40 paths to whoever follows them
        (root / "a" / f"up{i}").symlink_to(root)
    for spec in (str(root), f"{root}/**/*.txt"):
        with pytest.raises(DataError, match=r"must not hold a link to a folder above it"):
            list_files(spec)
    assert time.monotonic() - began < 5
