import pytest

from hymo.ablate.definition import change, find, load, shipped
from hymo.errors import AblationError, RecipeError
from tests.ablate.conftest import EXPERIMENT

BASE = {
    "model": {"pattern": "MGGG*2", "layers": {"M": {"mixer": {"type": "mla", "n_heads": 4, "head_dim": 16, "rope_dim": 8}}}, "softcap": 15.0},
    "train": {"steps": 20, "tokens": None},
}


def test_deltas_may_be_dotted_or_nested():
    dotted = change(BASE, {"model.layers.M.mixer.n_heads": 8})
    nested = change(BASE, {"model": {"layers": {"M": {"mixer": {"n_heads": 8}}}}})
    assert dotted == nested
    assert dotted["model"]["layers"]["M"]["mixer"] == {"type": "mla", "n_heads": 8, "head_dim": 16, "rope_dim": 8}
    assert BASE["model"]["layers"]["M"]["mixer"]["n_heads"] == 4


@pytest.mark.parametrize(
    ("value", "number"),
    [("x0.5", 4), ("x2", 16), ("x0.25 of head_dim", 4), ("x1 of head_dim", 16), ("x0", 0)],
)
def test_relative_numbers_are_the_bases_own(value, number):
    changed = change(BASE, {"model.layers.M.mixer.rope_dim": value})
    assert changed["model"]["layers"]["M"]["mixer"]["rope_dim"] == number


def test_a_relative_number_keeps_its_kind():
    assert change(BASE, {"model.softcap": "x0.5"})["model"]["softcap"] == 7.5
    with pytest.raises(RecipeError, match=r"'x0.3' must give a whole number, but got 2.4 from 8"):
        change(BASE, {"model.layers.M.mixer.rope_dim": "x0.3"})
    with pytest.raises(RecipeError, match=r"multiplies a number of the base, but got None at model.layers.M.mixer.typo"):
        change(BASE, {"model.layers.M.mixer.typo": "x2"})


@pytest.mark.parametrize(
    ("pattern", "filled"), [("MG*", "MGMGMGMG"), ("GGGM*", "GGGMGGGM"), ("MGG*", "MGGMGGMG"), ("G*", "GGGGGGGG"), ("MG*4", "MG*4")]
)
def test_a_pattern_fills_the_bases_depth(pattern, filled):
    assert change(BASE, {"model.pattern": pattern})["model"]["pattern"] == filled


def test_the_recipes_own_merge_rules_hold():
    assert change(BASE, {"train.tokens": 1000})["train"] == {"tokens": 1000}
    assert change(BASE, {"model.layers.M.mixer": "gdn"})["model"]["layers"]["M"]["mixer"] == {"type": "gdn"}


def test_every_shipped_experiment_is_well_formed():
    names = shipped()
    assert {
        "nope_hybrid",
        "mla_pos0",
        "mixer_ratio",
        "kv_groups",
        "kv_rank",
        "partial_rope",
        "gdn_rope_target",
        "gdn_decay_gate",
        "gdn_decay_init",
    } <= {*names}
    assert {
        "gdn_residual",
        "ffn_placement",
        "moe_balance",
        "moe_capacity",
        "moe_topk",
        "shared_expert",
        "router_precision",
        "mtp_depth",
        "mtp_kind",
    } <= {*names}
    assert {"mtp_chain", "softcap", "tying", "qk_scale", "optimizer"} <= {*names}
    for name in names:
        definition = load(name).definition
        assert definition.hypothesis.endswith(".")
        assert definition.expectation.endswith((".", ")."))


def test_an_unknown_experiment_gets_a_suggestion():
    with pytest.raises(AblationError, match="'nope_hibrid'; did you mean 'nope_hybrid'"):
        find("nope_hibrid")


def test_an_experiment_of_ones_own_comes_first(write_experiment):
    assert load(write_experiment("softcap")).definition.hypothesis == "The order does not matter."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("margin: 0.01", "margin: 0", r"ablation.yaml:6:1: margin must be greater than 0, but got 0"),
        ("margin: 0.01", "margin: -1", "margin must be greater than 0"),
        ("delta_min: 0.01\n", "", "delta_min must be given: smallest difference"),
        ("hypothesis:", "hypotesis:", "must hold only known keys, but got 'hypotesis'; did you mean 'hypothesis'"),
        ("match: none", "match: {by: none, solve: model.d_model}", "matching by none must come alone, but got solve beside it"),
        ("match: none", "match: {by: wall_time, solve: model.d_model}", "matching by wall_time changes the number of steps"),
        ("match: none", "match: params", "match.by"),
        ("  swap: {model.swap: [[0, 1]]}\n", "  swap: {}\n", "ablation.yaml:9:3: an arm must change something, but got an empty 'swap'"),
        ("  swap:", "  baseline:", "other than 'baseline'"),
        ("  swap:", "  a b:", "a word of letters"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(write_experiment, old, new, message):
    assert old in EXPERIMENT
    with pytest.raises(AblationError, match=message) as caught:
        load(write_experiment(text=EXPERIMENT.replace(old, new)))
    assert "\n" not in str(caught.value)


def test_not_a_mapping(write_experiment):
    with pytest.raises(AblationError, match="must be a mapping"):
        load(write_experiment(text="- a\n- b\n"))
