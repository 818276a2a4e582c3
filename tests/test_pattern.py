import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymo.errors import PatternError
from hymo.pattern import MAX_LAYERS, check_symbols, parse, render


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("M", "M"),
        ("MGGG*2", "MGGGMGGG"),
        ("(MG)*2 G", "MGMGG"),
        ("G MGG*2 MG", "GMGGMGGMG"),
        ("(M GG*2)*2", "MGGGGMGGGG"),
        ("  M   G ", "MG"),
        ("((A)*2 (B))*2", "AABAAB"),
        ("M*3", "MMM"),
    ],
)
def test_parse_reads_runs_groups_and_repeats(pattern, layers):
    assert parse(pattern) == list(layers)


def test_v1_pattern_is_32_layers_with_attention_every_fourth():
    symbols = parse("MGGG*8")
    assert len(symbols) == 32
    assert [i for i, s in enumerate(symbols) if s == "M"] == [0, 4, 8, 12, 16, 20, 24, 28]


@pytest.mark.parametrize(
    ("pattern", "marked", "says"),
    [
        ("MGGG * 8", "MGGG ^* 8", "without a space"),
        ("MGGG* 8", "MGGG*^ 8", "followed at once"),
        ("M #8", "M ^#8", "M*8"),
        ("M x 8", "M x ^8", "MGGG*8"),
        ("M*2G", "M*2^G", "a space must separate"),
        ("G(MG)*2", "G^(MG)*2", "a space must separate"),
        ("M*2*3", "M*2^*3", "a space must separate"),
        ("M*0", "M*^0", "at least 1"),
        ("(MG", "^(MG", "must be closed"),
        ("MG)", "MG^)", "must close"),
        ("M () G", "M (^) G", "expected"),
        ("M-G", "M^-G", "letters"),
        ("Ж", "^Ж", "letters"),
        ("", "^", "expected"),
    ],
)
def test_errors_put_a_caret_before_the_fault(pattern, marked, says):
    with pytest.raises(PatternError) as caught:
        parse(pattern)
    assert f"at ^ in {marked!r}" in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["MG*1000000000", "M*" + "9" * 4000, "(((M*1000)*1000)*1000)*1000", "M*1000 " * 500, "(" * 4000, "M" * 5000])
def test_huge_patterns_are_refused_at_once(pattern):
    begin = time.perf_counter()
    with pytest.raises(PatternError):
        parse(pattern)
    assert time.perf_counter() - begin < 0.5


def test_the_bound_on_layers_is_exact():
    assert len(parse(f"M*{MAX_LAYERS}")) == MAX_LAYERS
    with pytest.raises(PatternError, match=f"at most {MAX_LAYERS} layers"):
        parse(f"M*{MAX_LAYERS} M")


def test_unknown_symbol_gets_a_caret_and_a_suggestion():
    with pytest.raises(PatternError, match=r"got 'm'; did you mean 'M'\?, at \^ in 'G\^m'"):
        check_symbols("Gm", {"M": 1, "G": 1})
    with pytest.raises(PatternError, match="choose from G, M"):
        check_symbols("MX", ["G", "M"])
    check_symbols("MG*3", {"M", "G"})


@given(st.lists(st.sampled_from("MGX"), min_size=1, max_size=60))
def test_render_then_parse_is_the_identity(symbols):
    assert parse(render(symbols)) == symbols


@given(st.lists(st.sampled_from("MG"), min_size=1, max_size=6), st.integers(2, 40))
def test_render_shortens_repeats(unit, times):
    assert len(render(unit * times)) <= len("".join(unit)) + 3


_terms = st.recursive(
    st.text("MGab", min_size=1, max_size=4),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda terms: f"({' '.join(terms)})"),
        st.tuples(inner.filter(lambda term: "*" not in term[-3:]), st.integers(1, 3)).map(lambda pair: f"{pair[0]}*{pair[1]}"),
    ),
    max_leaves=5,
)


def _by_hand(pattern: str) -> str:
    """An independent reading: Python's own grammar, with quotes around runs and + between terms."""
    out, run = "", ""
    for char in pattern + " ":
        if char.isalpha():
            run += char
            continue
        if run:
            out, run = out + repr(run), ""
        out += "+" if char == " " else char
    return eval(out.rstrip("+"))


@given(st.lists(_terms, min_size=1, max_size=4).map(" ".join))
def test_parse_agrees_with_python_arithmetic_on_strings(pattern):
    assert "".join(parse(pattern)) == _by_hand(pattern)


@given(st.text(max_size=40))
def test_any_text_parses_or_says_why_in_one_line(text):
    symbols, refusal = outcome(text)
    assert len(refusal.splitlines()) == (0 if symbols else 1)
    assert set(symbols) <= set(text)


def outcome(text: str) -> tuple[list[str], str]:
    """What `text` parses to, or what parse says against it."""
    try:
        return parse(text), ""
    except PatternError as error:
        return [], str(error)
