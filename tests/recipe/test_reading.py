import os
import resource
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymo.errors import RecipeError
from hymo.recipe.reading import MAX_BYTES, MAX_DEPTH, MAX_VALUES, read_file, read_text, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [       # the examples of YAML 1.2.2, section 10.3, and those that YAML 1.1 reads otherwise
        ("null", None), ("~", None), ("", None),
        ("true", True), ("False", False), ("yes", "yes"), ("on", "on"), ("NO", "NO"),
        ("0", 0), ("-19", -19), ("+12", 12), ("0o7", 7), ("0x3A", 58), ("012", 12),
        ("0.", 0.0), ("-0.0", 0.0), (".5", 0.5), ("+12e03", 12000.0), ("-2E+05", -200000.0), ("1e-3", 0.001),
        ("1:20", "1:20"), ("1_000", "1_000"), ("2001-01-01", "2001-01-01"), ("0b1", "0b1"), ("1e", "1e"), ("2M", "2M"),
    ],
)
def test_scalars_follow_the_core_schema(text, value):
    got = scalar(text)
    assert got == value
    assert type(got) is type(value)


def test_quotes_make_text_and_keys_are_text():
    assert read_text('a: "1"\n5: [on, \'true\']\n"3,7": {x: }', None).value == {"a": "1", "5": ["on", "true"], "3,7": {"x": None}}


def test_places_are_file_line_column_of_the_key_or_item():
    document = read_text("model:\n  pattern: MG\n  swap:\n    - 0\n    - 1\n", "r.yaml")
    assert document.places["model", "pattern"] == "r.yaml:2:3"
    assert document.places["model", "swap", "1"] == "r.yaml:5:7"


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("a: 1\nb: 2\na: 3", "r.yaml:3:1", "given once"),
        ("a: {x: 1, x: 2}", "r.yaml:1:11", "given once"),
        ("a: &x [1]\nb: *x", "r.yaml:1:4", "anchor"),
        ("p: [M, *G]", "r.yaml:1:8", "in quotes"),
        ("pattern: *G", "r.yaml:1:10", "in quotes"),
        ("a: !!python/object/apply:os.system [ls]", "r.yaml:1:4", "tag"),
        ("a: !local 1", "r.yaml:1:4", "tag"),
        ("!!set {a}", "r.yaml:1:1", "tag"),
        ("a: .nan", "r.yaml:1:4", "finite"),
        ("a: -.inf", "r.yaml:1:4", "finite"),
        ("a: 1e999", "r.yaml:1:4", "finite"),
        ("a: " + "9" * 5000, "r.yaml:1:4", "characters"),
        ("pattern: M #8", "r.yaml:1:10", "a repeat is written M*8"),
        ("pattern: MG # 8 ", "r.yaml:1:10", "a repeat is written MG*8"),
        ("---\na: 1\n---\nb: 1", "r.yaml:3:1", "one YAML document"),
        ("a: [1", "r.yaml:1:6", "YAML 1.2"),
        ("a:\n\t- 1", "r.yaml:2:1", "YAML 1.2"),
        ("a: 'x", "r.yaml:1:6", "YAML 1.2"),
        ("? [a]\n: 1", "r.yaml:1:3", "a word or a number"),
        ("k" * 500 + ": 1", "r.yaml:1:1", "characters long"),
    ],
)
def test_what_a_recipe_has_no_use_for_is_refused_with_its_place(text, where, says):
    with pytest.raises(RecipeError) as caught:
        read_text(text, "r.yaml")
    assert str(caught.value).startswith(f"{where}: ")
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_comment_after_the_pattern_that_is_no_repeat_is_a_comment():
    assert read_text("pattern: MG*8 # 16 layers", None).value == {"pattern": "MG*8"}


BOMB = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "[" * 60000,
        "{a: " * 15000,
        "a: [" + "1," * 30000 + "]",
        "\n".join(f"k{i}: {i}" for i in range(6000)),
        "- " * 30000,
        "!" * 60000,
        "a: " + "!" * 60000,
        "%" * 60000,
        "a: \x00",
        "\ud800",
    ],
)
def test_hostile_text_is_refused_fast_and_in_little_memory(text):
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    with pytest.raises(RecipeError) as caught:
        read_text(text, "r.yaml")
    assert time.process_time() - begin < 2
    assert len(str(caught.value)) < 400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before < 100e3     # kB


def test_the_bounds_are_exact():
    inside = "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH
    assert read_text(inside, None).value
    with pytest.raises(RecipeError, match=f"at most {MAX_DEPTH} levels"):
        read_text(f"[{inside}]", None)
    assert len(read_text("[" + "1," * (MAX_VALUES - 1) + "]", None).value) == MAX_VALUES - 1
    with pytest.raises(RecipeError, match=f"at most {MAX_VALUES} keys and values"):
        read_text("[" + "1," * MAX_VALUES + "]", None)


def test_files_that_are_not_small_utf8_files_are_refused(tmp_path):
    large, latin, missing, folder, pipe = (tmp_path / name for name in ("large", "latin", "missing", "folder", "pipe"))
    large.write_text("#" * (MAX_BYTES + 1))
    latin.write_bytes(b"a: 1\nb: \xe9\n")
    folder.mkdir()
    os.mkfifo(pipe)
    for path, says in [(large, "bytes long"), (latin, "latin:2: a recipe must be UTF-8"), (missing, "exists"), (folder, "exists"), (pipe, "exists")]:
        with pytest.raises(RecipeError, match=says):
            read_file(path)


@given(st.text(alphabet=st.sampled_from("ab:- \n\t{}[]*&!#|>'\"%@`0.e,?"), max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text):
    assert len(refusal(text).splitlines()) <= 1


def refusal(text: str) -> str:
    """What read_text says against `text`; nothing when it reads it."""
    try:
        read_text(text, "r.yaml")
    except RecipeError as error:
        return str(error)
    return ""
