import pytest

from hymo.generate.text import Writer


def written(pieces, stops=()):
    writer = Writer(stops)
    texts = [writer.write(piece) for piece in pieces]
    return [*texts, writer.close()], writer.stopped


def test_text_comes_as_it_is_written():
    assert written([b"a", b"b c"]) == (["a", "b c", ""], False)


def test_half_a_character_waits_for_the_rest():
    assert written(["é".encode()[:1], "é".encode()[1:]]) == (["", "é", ""], False)
    cat = "猫".encode()
    assert written([cat[:2], cat[2:] + b"!"]) == (["", "猫!", ""], False)


def test_bytes_that_are_no_text_are_shown_as_such():
    assert written([b"a\xff", b"b", b"\xe7\x8c"]) == (["a\ufffd", "b", "", "\ufffd"], False)


@pytest.mark.parametrize("pieces", [[b"one\n\ntwo"], [b"one\n", b"\ntwo"], [b"one", b"\n", b"\n", b"two"]])
def test_a_stop_string_ends_the_text_however_it_is_cut(pieces):
    texts, stopped = written(pieces, ["\n\n"])
    assert "".join(texts) == "one"
    assert stopped


def test_what_only_looked_like_a_stop_string_is_written_after_all():
    assert written([b"a", b"</", b"x", b"</"], ["</s>"]) == (["a", "", "</x", "", "</"], False)
    assert written([b"aa", b"ab"], ["aab"])[0] == ["", "a", ""]


def test_the_first_of_several_stops_counts():
    assert "".join(written([b"one, two. three"], [".", ","])[0]) == "one"


def test_nothing_after_a_stop():
    assert written([b"a.", b"b", b"c"], ["."]) == (["a", "", "", ""], True)
