import time

import pytest

from hymo.errors import RecipeError
from hymo.recipe import load_recipe, resolve_stack


def stack(recipe_file, *overrides):
    return resolve_stack(load_recipe(recipe_file, overrides).model)


def names(layers):
    return " ".join(layer.info.name for layer in layers)


def touched(layers, key):
    return [layer.info.index for layer in layers if key in layer.overridden]


def test_the_pattern_alone(recipe_file):
    layers = stack(recipe_file)
    assert names(layers) == "A0 G0 G1 G2 A1 G3 G4 G5"
    assert [layer.info.index for layer in layers] == list(range(8))
    assert [layer.mixer.type for layer in layers] == ["narrow", "wide_mixer", "wide_mixer", "wide_mixer"] * 2
    assert [layer.ffn.type for layer in layers] == ["wide", "none", "none", "none"] * 2
    assert not any(layer.overridden for layer in layers)


@pytest.mark.parametrize(
    ("key", "positions"),
    [
        ("5", [5]),
        ("3, 7,1", [1, 3, 7]),
        ("1:8:3", [1, 4, 7]),
        ("2:4", [2, 3]),
        ("0,2:4", [0, 2, 3]),
        ("before:A", [3]),
        ("after:A", [1, 5]),
        ("before:G", [0, 1, 2, 4, 5, 6]),
        ("after:G", [2, 3, 4, 6, 7]),
        ("A[1]", [4]),
        ("G[5]", [7]),
        ("A[0],G[0]", [0, 1]),
        ("all", list(range(8))),
    ],
)
def test_positions(recipe_file, key, positions):
    layers = stack(recipe_file, f"model.overrides={{'{key}': {{ffn: wide}}}}")
    assert touched(layers, key) == positions
    assert all(layers[i].ffn.type == "wide" for i in positions)


def test_before_the_later_attention_layers_of_v1_is_3_7_to_27(recipe_file):
    layers = stack(recipe_file, "model.pattern=AGGG*8", "model.overrides.before:A.ffn=wide")
    assert touched(layers, "before:A") == [3, 7, 11, 15, 19, 23, 27]
    assert touched(stack(recipe_file, "model.pattern=AGGG*8", "model.overrides.3:28:4.ffn=wide"), "3:28:4") == [3, 7, 11, 15, 19, 23, 27]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("8", "from 0 to 7, but got 8"),
        ("1:9", "end at 8 or before"),
        ("1:4:0", "step by 1 or more"),
        ("3:3", "selects none of 8"),
        ("-1", "one of the forms"),
        ("3:", "one of the forms"),
        ("5,", "one of the forms"),
        ("before A", "one of the forms"),
        ("99999999999999", "one of the forms"),
        ("before:M", "must be one of the pattern's, but got 'M'"),
        ("A[2]", "N from 0 to 1"),
        ("A", "one of the forms"),
        ("", "one of the forms"),
    ],
)
def test_positions_outside_the_stack_are_errors(recipe_file, key, says):
    with pytest.raises(RecipeError) as caught:
        stack(recipe_file, f"model.overrides={{'{key}': {{ffn: wide}}}}")
    assert says in str(caught.value)
    assert str(caught.value).startswith("override ")


def test_before_selects_nothing_when_the_symbol_only_opens_the_stack(recipe_file):
    with pytest.raises(RecipeError, match="must select at least one layer, but got 'before:A', which selects none of 4"):
        stack(recipe_file, "model.pattern=AGGG", "model.overrides.before:A.ffn=wide")


def test_values_merge_and_later_keys_win(recipe_file):
    layers = stack(recipe_file, "model.overrides={all: {ffn: {type: wide, inter_dim: 5}}, '4': {ffn: {inter_dim: 6}}, 'G[0]': {mixer: {gate: hard}}}")
    assert [layer.ffn.inter_dim for layer in layers] == [5, 5, 5, 5, 6, 5, 5, 5]
    assert layers[4].overridden == ("all", "4")
    assert (layers[1].mixer.state, layers[1].mixer.gate, layers[2].mixer.gate) == (8, "hard", "soft")


def test_a_changed_type_discards_the_old_types_fields(recipe_file):
    layers = stack(recipe_file, "model.overrides={'1': {mixer: {type: narrow}}, '4': {mixer: {type: wide_mixer, state: 2}}}")
    assert (layers[1].mixer.type, layers[1].mixer.heads) == ("narrow", 2)
    assert (layers[4].mixer.type, layers[4].mixer.state) == ("wide_mixer", 2)


def test_a_symbol_replaces_the_layer_and_renames_no_other(recipe_file):
    layers = stack(recipe_file, "model.overrides={'1': A, all: {ffn: wide}, '4': G}")
    assert names(layers) == "A0 A2 G1 G2 G6 G3 G4 G5"
    assert layers[1].mixer.type == "narrow"
    assert layers[4].ffn.type == "none"         # the later key replaces all of the layer
    assert layers[4].overridden == ("all", "4")


def test_every_name_is_unique_after_replacements(recipe_file):
    layers = stack(recipe_file, "model.overrides={'0': G, 'G[2]': A, 'before:A': A}")
    assert len({layer.info.name for layer in layers}) == 8


def test_layers_keep_their_names_when_they_swap(recipe_file):
    layers = stack(recipe_file, "model.swap=[[0, 1], [4, 7]]", "model.overrides.A[1].ffn.inter_dim=3")
    assert names(layers) == "G0 A0 G1 G2 G5 G3 G4 A1"
    assert touched(layers, "A[1]") == [7]
    assert [layer.info.index for layer in layers] == list(range(8))


def test_swaps_outside_the_stack_are_errors(recipe_file):
    with pytest.raises(RecipeError, match=r"override 'model.swap=\[0, 8\]': model.swap must name positions from 0 to 7, but got 8"):
        stack(recipe_file, "model.swap=[0, 8]")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{mixer: {stat: 1}}", "model.overrides.1.mixer must hold only known keys, but got 'stat'; did you mean 'state'?"),
        ("{mxer: narrow}", "model.overrides.1 must hold only known keys, but got 'mxer'; did you mean 'mixer'?"),
        ("{mixer: narow}", "did you mean 'narrow'?"),
        ("{mixer: {type: narrow, heads: 7}}", "divisible"),
        ("X", "a mapping or a symbol of model.layers, but got 'X'"),
        ("[1]", "model.overrides"),
    ],
)
def test_bad_values_are_placed(recipe_file, value, says):
    with pytest.raises(RecipeError) as caught:
        stack(recipe_file, f"model.overrides.1={value}")
    assert says in str(caught.value)
    assert str(caught.value).startswith("override ")


def test_a_symbol_used_only_by_an_override_counts_as_used(recipe_file):
    layers = stack(recipe_file, "model.layers.W.mixer=narrow", "model.overrides.2=W")
    assert names(layers) == "A0 G0 W0 G2 A1 G3 G4 G5"


def test_the_largest_stack_resolves_fast(recipe_file):
    begin = time.process_time()
    layers = stack(recipe_file, "model.pattern=AG*512", "model.overrides={before:A: {ffn: wide}, all: {mixer: {rope: none, type: narrow}}}")
    assert len(layers) == 1024
    assert time.process_time() - begin < 5
