import pytest

from hymo.errors import ProbeError
from hymo.probes.base import open_probe


def look_back(row):
    """What followed the last four tokens when they came before, 0 when they did not."""
    key = row[-4:]
    for t in range(len(row) - 5):
        if row[t : t + 4] == key:
            return row[t + 4]
    return 0


def test_rows_by_the_definition(subject):
    probe = open_probe("needle", {"rows": 6})
    for depth, at in ((0, 0), (50, 28), (100, 55)):     # 55 tokens of text beside two keys of four and a value
        rows, values = probe.hidden(subject, depth, 64, decoy=False)
        lies, same = probe.hidden(subject, depth, 64, decoy=True)
        assert rows.shape == (6, 64)
        assert same.tolist() == values.tolist()
        text = subject.text.tolist()
        for row, lie, value in zip(rows.tolist(), lies.tolist(), values.tolist(), strict=True):
            assert row[at : at + 4] == row[-4:], "the key is asked for at the end"
            assert row[at + 4] == value
            hay = row[:at] + row[at + 5 : -4]
            assert any(text[t : t + 55] == hay for t in range(len(text) - 54))
            assert lie[:at] + lie[at + 5 :] == row[:at] + row[at + 5 :], "only the needle differs"
            assert lie[at : at + 4] != row[at : at + 4]
            assert max(row[at : at + 5]) < 256, "<|endoftext|> is no part of a needle"


def test_a_model_that_looks_back_finds_every_needle(subject, oracle):
    oracle(subject, look_back)
    found = open_probe("needle", {"rows": 4, "depths": [0, 100], "factors": [0.5, 2]}).measure(subject)
    assert found.summary["accuracy"] == 1.0
    assert found.axes == (("depth", (0, 100)), ("length", [32, 128]))
    assert found.cells == [pytest.approx(5.0, abs=1e-5)] * 4        # logits of 5 with the needle, 0 without


def test_a_model_without_memory_finds_none(subject, oracle):
    oracle(subject, lambda row: 0)
    found = open_probe("needle", {"rows": 4, "depths": [50], "factors": [1]}).measure(subject)
    assert found.cells == [0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": [8]}, "at most 4 times the trained length, 256 tokens, but got rows of 512"),
        ({"factors": [0.1]}, "needs rows of 20 tokens at least for a key of 4, but got 6"),
        ({"depths": [101]}, "depths of 0 to 100 per cent"),
    ],
)
def test_what_does_not_fit_is_refused(text_recipe, options, message):
    with pytest.raises(ProbeError, match=message):
        open_probe("needle", options).check(text_recipe)


def test_a_task_has_no_text(task_recipe):
    with pytest.raises(ProbeError, match=r"needs a run on text, but got data\.source=synthetic:mqar"):
        open_probe("needle").check(task_recipe)
