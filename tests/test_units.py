import pytest

from hymo.errors import HymoError
from hymo.units import in_bytes, in_time, parse_time, si


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (999, "999"), (1_234_567, "1.23 M"), (3.7e9, "3.7 G"), (-2500, "-2.5 k")])
def test_three_digits_and_a_letter(value, text):
    assert si(value) == text


@pytest.mark.parametrize(("value", "text"), [(64.8, "64.8 tokens/s"), (3200, "3.2 ktokens/s"), (0, "0 tokens/s")])
def test_a_unit_stands_off_the_number(value, text):
    assert si(value, "tokens/s") == text


@pytest.mark.parametrize(("value", "text"), [(512, "512 B"), (1536, "1.5 KiB"), (5 * 1024**3, "5.0 GiB")])
def test_bytes(value, text):
    assert in_bytes(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (59, "59 s"), (61, "1 min 1 s"), (4000, "1 h 6 min"), (90_000, "1 d 1 h"), (3e9, "95 y 23 d")]
)
def test_the_two_largest_units(seconds, text):
    assert in_time(seconds) == text


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1.5h", 5400), ("1d", 86_400)])
def test_times_are_read(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "0m", "5 m", "5w", "nan"])
def test_anything_else_is_refused(text):
    with pytest.raises(HymoError, match="must be a positive number with s, m, h or d"):
        parse_time(text)
