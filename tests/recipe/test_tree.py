import pytest
from pydantic import ValidationError

from hymo.block import BlockConfig
from hymo.recipe.tree import MAX_DIM, Recipe, TrainConfig, count, pairs
from hymo.settings import Settings


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("2M", 2_000_000),
        ("30B", 30_000_000_000),
        ("16k", 16_000),
        ("1.5k", 1500),
        ("0.1M", 100_000),
        ("1.1M", 1_100_000),
        ("2.3B", 2_300_000_000),
        ("1T", 10**12),
        ("4Ki", 4096),
        ("1Mi", 1048576),
    ],
)
def test_counts_with_units(raw, value):
    assert count(raw) == value
    assert type(count(raw)) is int


@pytest.mark.parametrize("raw", ["2m", "2 M", "M", "-2M", "2MM", "1e3k", 5, 5.0, None, "5"])
def test_what_is_no_count_with_a_unit_is_left_as_it_is(raw):
    assert count(raw) is raw


def test_a_fraction_of_a_token_is_refused():
    with pytest.raises(ValueError, match=r"a whole number, but got 1\.0005k"):
        count("1.0005k")


def test_pairs():
    assert pairs([0, 1]) == [[0, 1]]
    assert pairs([[0, 1], [2, 3]]) == [[0, 1], [2, 3]]
    assert pairs([]) == []
    assert pairs("01") == "01"


@pytest.mark.parametrize(
    "settings",
    [{"seq_len": MAX_DIM + 1}, {"seq_len": 0}, {"tokens": "-1"}, {"tokens": 10**17}, {"dtype": "fp64"}, {"sequence": 5}, {"steps": float("nan")}],
)
def test_bounds_of_train(settings):
    with pytest.raises(ValidationError):
        TrainConfig.model_validate(settings)


def test_nodes_are_frozen():
    train = TrainConfig(steps=1)
    with pytest.raises(ValidationError):
        train.steps = 2


def sections(model: type[Settings]):
    """`model` and the sections inside it; blocks are described where they are written (test_layout.py)."""
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings) and field.annotation is not BlockConfig:
            yield from sections(field.annotation)


@pytest.mark.parametrize("section", list(sections(Recipe)), ids=lambda section: section.__name__)
def test_every_field_is_described_in_one_line(section):
    for name, field in section.model_fields.items():
        assert field.description, f"{section.__name__}.{name}"
        assert "\n" not in field.description
