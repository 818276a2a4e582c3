import pytest

from hymo.ablate.difference import brief, differences, order
from hymo.recipe import load_recipe, resolve_stack


def recipe(*overrides):
    return load_recipe("v1_0", overrides, scale="tiny")


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("model.softcap=30", ["model.softcap: 15 → 30"]),
        ("optimizer.adamw.lr=2e-3", ["optimizer.adamw.lr: 0.001 → 0.002"]),
        ("model.layers.M.mixer.n_kv_groups=4", ["M.mixer.n_kv_groups: 2 → 4  [layers 0, 4]"]),
        ("model.layers.G.mixer.rope=none", ["G.mixer.rope: — → none  [layers 1, 2, 3, …, 7]"]),
        ("model.layers.M.ffn=dense_ffn", ["M.ffn: moe → dense_ffn  [layers 0, 4]"]),
        ('model.overrides={"M[1]": {mixer: {rope: none}}}', ["M.mixer.rope: — → none  [layers 4]"]),
        ("model.pattern=GMGG*2", ["order: MGGG*2 → GMGG*2"]),
        ("model.swap=[[0, 1]]", ["order: MGGG*2 → G M G*2 M G*3"]),
        ("model.swap=[[0, 4]]", ["order: MGGG*2 → M1 G0 G1 G2 M0 G3 G4 G5"]),
        ("run.seed=5", []),
        ("name=other", []),
    ],
)
def test_what_differs_is_said_once_resolved(override, shown):
    assert [str(one) for one in differences(recipe(), recipe(override))] == shown


def test_words_that_lead_to_the_same_stack_do_not_differ():
    assert differences(recipe(), recipe("model.pattern=MGGG MGGG")) == []


def test_a_pattern_names_settings_with_or_without_the_symbol():
    (one,) = differences(recipe(), recipe("model.layers.M.mixer.n_kv_groups=4"))
    assert all(one.matches([pattern]) for pattern in ("mixer.n_kv_groups", "M.mixer.n_kv_groups", "mixer", "M.mixer", "*.n_kv_groups"))
    assert not any(one.matches([pattern]) for pattern in ("G.mixer", "ffn", "n_kv_groups", "mixer.n_kv"))


@pytest.mark.parametrize(("pattern", "shown"), [("MGGG*2", "MGGG*2"), ("MGGMGGMG", "M G*2 M G*2 M G"), ("MGGGGGGG", "M G*7"), ("MG*4", "MG*4")])
def test_orders_are_short(pattern, shown):
    assert order(resolve_stack(recipe(f"model.pattern={pattern}").model)) == shown


def test_brief_values():
    assert [brief(value) for value in (None, 0.5, 1e-9, {"type": "mla", "n": 1}, {"a": 1}, "x")] == ["—", "0.5", "1e-09", "mla", "{a: 1}", "x"]
