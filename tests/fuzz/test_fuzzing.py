"""The count that `make fuzz` ends with."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.statistics import collector, describe_statistics

from tests.fuzz.fuzzing import counted


def test_cases_are_counted_in_hypothesis_own_words():
    seen, told = [], []

    @settings(max_examples=37, database=None)
    @given(number=st.integers(0, 10**9))
    def even(number):
        seen.append(number)
        assume(number % 2 == 0)

    with collector.with_value(told.append):
        even()
    words = "".join(map(describe_statistics, told))
    assert counted(words, "passing") == sum(number % 2 == 0 for number in seen) == 37
    assert counted(words, "invalid") == sum(number % 2 for number in seen)
