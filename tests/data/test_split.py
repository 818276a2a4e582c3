from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymo.data.sources import Builtin, TextSource
from hymo.data.split import ByContent, Separate, content_hash, split_text
from hymo.errors import DataError


class Listed(TextSource):
    name = "listed"

    def __init__(self, documents: list[bytes], endless: bool = False) -> None:
        self._documents = documents
        self.endless = endless

    def documents(self) -> Iterator[bytes]:
        return iter(self._documents)

    @property
    def fingerprint(self) -> str:
        return "0" * 16


DOCUMENTS = st.lists(st.binary(min_size=1, max_size=4), min_size=2, max_size=60)


@given(documents=DOCUMENTS, fraction=st.floats(0.01, 0.5))
def test_no_document_on_both_sides_and_none_lost(documents: list[bytes], fraction: float):
    sides = ByContent(Listed(documents), fraction)
    train, held_out = list(sides.train()), list(sides.validation())
    assert not set(train) & set(held_out)                   # copies included
    assert sorted(train + held_out) == sorted(documents)
    assert train == [d for d in documents if d in set(train)]     # the source's order
    assert held_out


def test_the_share_is_the_nearest_whole_number():
    documents = [str(i).encode() for i in range(200)]
    assert len(list(ByContent(Listed(documents), 0.05).validation())) == 10
    assert len(list(ByContent(Listed(documents), 0.001).validation())) == 1


def test_adding_documents_moves_few_across():
    """Content, not place, decides: a document stays on its side when others come and go around the same threshold."""
    documents = [str(i).encode() for i in range(1000)]
    before = set(ByContent(Listed(documents), 0.1).validation())
    after = set(ByContent(Listed([b"new first", *documents]), 0.1).validation())
    assert len(before ^ after) <= 2


def test_a_stream_holds_out_by_a_fixed_threshold():
    documents = [str(i).encode() for i in range(4000)]
    sides = ByContent(Listed(documents, endless=True), 0.25)
    held_out = list(sides.validation())
    assert held_out == [d for d in documents if content_hash(d) < 2**62]
    assert 900 < len(held_out) < 1100
    assert list(sides.train()) == [d for d in documents if content_hash(d) >= 2**62]


def test_builtin_is_split_by_file_without_leakage():
    source = Builtin()
    sides = ByContent(source, 0.05)
    train, held_out = list(sides.train()), list(sides.validation())
    assert len(train) + len(held_out) == len(list(source.documents()))
    assert not set(train) & set(held_out)
    assert 0.04 < len(held_out) / (len(train) + len(held_out)) < 0.06
    assert sum(map(len, train)) > 5_000_000


def test_the_tail_of_a_single_document_is_held_out():
    sides = ByContent(Listed([b"one\ntwo\nthree\nfour\n"]), 0.25)
    assert list(sides.train()) == [b"one\ntwo\nthree\n"]
    assert list(sides.validation()) == [b"four\n"]


@given(text=st.text(min_size=1, max_size=60), fraction=st.floats(0.01, 0.99))
def test_a_cut_loses_nothing_and_halves_no_character(text: str, fraction: float):
    head, tail = split_text(text.encode(), fraction)
    assert head.decode() + tail.decode() == text
    assert tail


def test_an_empty_source_is_refused():
    with pytest.raises(DataError, match=r"must hold text, but 'listed' is empty"):
        list(ByContent(Listed([]), 0.1).train())


def test_separate_sources():
    sides = Separate(Listed([b"a"]), Listed([b"b"]))
    assert list(sides.train()) == [b"a"]
    assert list(sides.validation()) == [b"b"]
    assert sides.fingerprint != ByContent(Listed([b"a"]), 0.1).fingerprint
