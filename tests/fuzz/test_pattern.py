"""The grammar written by a generator of its own, against the reader and the printer."""

from hypothesis import strategies as st

from hymo.pattern import MAX_LAYERS, parse, render
from tests.fuzz.fuzzing import fuzz

Term = tuple[str, list[str]]        # a term as text, and the layers it stands for


def repeated(term: Term, times: int) -> Term:
    return (f"{term[0]}*{times}", term[1] * times) if "*" not in term[0].rpartition(")")[2] else term


def grouped(terms: list[Term]) -> Term:
    return f"({' '.join(text for text, _ in terms)})", [symbol for _, layers in terms for symbol in layers]


TERMS: st.SearchStrategy[Term] = st.recursive(
    st.text("MGabZ", min_size=1, max_size=5).map(lambda run: (run, list(run))),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(grouped) | st.builds(repeated, inner, st.integers(1, 9)),
    max_leaves=6,
)


@fuzz(100, 2000, terms=st.lists(TERMS, min_size=1, max_size=4), gaps=st.integers(1, 3))
def test_parse_reads_what_was_meant_and_print_then_parse_is_the_identity(terms: list[Term], gaps: int) -> None:
    layers = [symbol for _, found in terms for symbol in found]
    if len(layers) > MAX_LAYERS:
        return
    assert parse((" " * gaps).join(text for text, _ in terms)) == layers
    assert parse(render(layers)) == layers
    assert render(parse(render(layers))) == render(layers)
