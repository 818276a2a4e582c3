import pytest

from hymo.ablate.definition import load
from hymo.ablate.matching import quantity
from hymo.ablate.plan import AGAIN, make_plan
from hymo.cost import count
from hymo.errors import AblationError
from hymo.recipe import resolve_stack
from tests.ablate.conftest import EXPERIMENT, RECIPE


def with_arms(*arms, match="none", factor="[order, mixer.rope, ffn.inter_dim]"):
    head = EXPERIMENT[: EXPERIMENT.index("arms:")].replace("match: none", f"match: {match}").replace("[order, mixer.rope, ffn.inter_dim]", factor)
    return head + "arms:\n" + "".join(f"  {arm}\n" for arm in arms) + "expectation: None.\n"


def test_the_difference_is_that_of_the_resolved_stack(plan_of):
    plan = plan_of()
    assert [str(one) for one in plan.arms[0].changes] == ["order: MG → GM"] or [str(one) for one in plan.arms[0].changes] == ["order: M G → G M"]
    assert [str(one) for one in plan.arms[1].changes] == ["M.ffn.inter_dim: 16 → 32  [layers 0]"]
    assert plan.arms[1].cost.active - plan.baseline.cost.active == 3 * 16 * 16


def test_mla_pos0_changes_nothing_but_the_order():
    plan = make_plan([load("mla_pos0")], scale="tiny", seeds=2)
    base = {layer.info.name: (layer.mixer, layer.ffn) for layer in resolve_stack(plan.baseline.recipe.model)}
    for arm in plan.arms:
        assert {layer.info.name: (layer.mixer, layer.ffn) for layer in resolve_stack(arm.recipe.model)} == base
        assert [one.setting for one in arm.changes] == ["order"]
    assert [layer.info.name for layer in resolve_stack(plan.arms[0].recipe.model)] == ["G0", "M0", "G1", "G2", "M1", "G3", "G4", "G5"]


def test_nope_hybrid_touches_the_layers_beside_attention():
    plan = make_plan([load("nope_hybrid")], scale="full", seeds=2)
    assert [one.layers for arm in plan.arms for one in arm.changes] == [tuple(range(3, 28, 4)), tuple(range(1, 30, 4))]


def test_what_moves_beside_the_factor_is_called_out(plan_of):
    plan = plan_of(with_arms("both: {model.swap: [[0, 1]], model.softcap: 30}"))
    assert plan.arms[0].notes == ("also moves model.softcap, which is not its factor (order, mixer.rope, ffn.inter_dim)",)
    assert plan_of(with_arms("one: {model.swap: [[0, 1]]}")).arms[0].notes == ()


def test_an_arm_outside_its_match_is_refused_with_its_place(plan_of):
    with pytest.raises(
        AblationError, match=r"ablation.yaml:9:3: arm 'wide' must keep active_params within 1 % of the baseline's, but got \+[0-9.]+%; name a width"
    ):
        plan_of(with_arms("wide: {model.layers.M.ffn.inter_dim: x4}", match="active_params"))


def test_a_width_is_solved_and_shown(plan_of):
    match = "{by: active_params, solve: [model.layers.M.ffn.inter_dim]}"
    plan = plan_of(with_arms("rank: {model.layers.M.mixer.q_lora_rank: 16}", match=match, factor="mixer.q_lora_rank"))
    arm = plan.arms[0]
    assert abs(quantity("active_params", count(arm.recipe)) / plan.baseline.cost.active - 1) <= 0.01
    # q_lora_rank 8 -> 16 adds 8·(16 + 16) + 8 weights; each unit of inter_dim takes away 3·16
    assert arm.recipe.model.layers["M"].ffn.inter_dim == 16 - round((8 * 32 + 8) / 48)
    assert arm.notes[0].startswith("solved model.layers.M.ffn.inter_dim 16 → 10: active_params +")
    assert not any("also moves" in note for note in arm.notes)


def test_a_width_that_cannot_reach_the_match_is_refused(plan_of):
    match = "{by: active_params, tolerance: 0.0001, solve: [model.layers.M.ffn.inter_dim]}"
    with pytest.raises(AblationError, match=r"solving model.layers.M.ffn.inter_dim 16 → 1[01]: .* is not enough"):
        plan_of(with_arms("rank: {model.layers.M.mixer.q_lora_rank: 16}", match=match, factor="mixer.q_lora_rank"))


def test_flops_are_matched_too(plan_of):
    match = "{by: flops_per_token, tolerance: 0.02, solve: [model.layers.M.ffn.inter_dim]}"
    plan = plan_of(with_arms("rank: {model.layers.M.mixer.q_lora_rank: 24}", match=match, factor="mixer.q_lora_rank"))
    assert plan.arms[0].cost.flops_per_token_train == pytest.approx(plan.baseline.cost.flops_per_token_train, rel=0.02)


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("a: {model.layers.M.mixer.n_head: 4}", "arm 'a' does not apply: .*'n_head'; did you mean 'n_heads'"),
        ("a: {model.swap: [[0, 7]]}", "arm 'a' does not apply: .*positions from 0 to 1, but got 7"),
        ("a: {run.seed: 3}", "arm 'a' must leave `run` alone"),
        ("a: {model.layers.G.mixer.impl: reference}", "arms must resolve to the same kernels"),
    ],
)
def test_a_delta_that_does_not_apply(plan_of, arm, message):
    with pytest.raises(AblationError, match=message) as caught:
        plan_of(with_arms(arm))
    assert "ablation.yaml:9" in str(caught.value)


def test_an_arm_that_is_none_at_this_scale_is_left_out_and_said(plan_of):
    plan = plan_of(
        with_arms("same: {model.layers.M.ffn.inter_dim: 16}", "one: {model.layers.M.ffn.inter_dim: 24}", "two: {model.layers.M.ffn.inter_dim: x1.5}")
    )
    assert [arm.label for arm in plan.arms] == ["one"]
    assert plan.left_out == ("same is the same as baseline at scale full", "two is the same as one at scale full")
    with pytest.raises(AblationError, match="must have an arm that differs from the baseline"):
        plan_of(with_arms("same: {model.layers.M.ffn.inter_dim: 16}"))


def test_one_seed_is_refused(plan_of):
    with pytest.raises(AblationError, match="2 seeds at least, but got seeds=1; one seed never names a winner"):
        plan_of(seeds=1)


def test_arms_are_chosen_by_name(plan_of):
    assert [arm.label for arm in plan_of(only=["wide"]).arms] == ["wide"]
    with pytest.raises(AblationError, match="'wied'; did you mean 'wide'"):
        plan_of(only=["wied"])


def test_seeds_count_from_the_recipes_own(plan_of):
    assert plan_of(seeds=3, overrides=["run.seed=7"]).seeds == (7, 8, 9)


def test_threads_and_micro_batch_are_fixed(plan_of):
    train = plan_of(threads=2).arms[0].recipe.train
    assert (train.threads, train.micro_batch) == (2, 2)
    assert plan_of(overrides=["train.micro_batch=1"]).baseline.recipe.train.micro_batch == 1


def test_the_aa_arm_is_the_baseline_with_another_initial_seed(plan_of):
    again = plan_of(again=True).again
    assert again.label == AGAIN
    assert again.recipe == plan_of().baseline.recipe
    assert again.salt > 10_000


def test_experiments_together_share_a_base(write_experiment):
    one, other = load(write_experiment("one")), load(write_experiment("other", recipe=RECIPE.replace("d_model: 16", "d_model: 24")))
    with pytest.raises(AblationError, match="must share their base recipe, but got one, other with 2 bases"):
        make_plan([one, other], scale="full", seeds=2)


def test_a_factorial_has_the_cells_with_both(write_experiment):
    one = load(write_experiment("one", with_arms("swap: {model.swap: [[0, 1]]}")))
    other = load(write_experiment("other", with_arms("wide: {model.layers.M.ffn.inter_dim: x2}", "wider: {model.layers.M.ffn.inter_dim: x4}")))
    plan = make_plan([one, other], scale="full", seeds=2, cross=True)
    assert [arm.label for arm in plan.arms] == ["one/swap", "other/wide", "other/wider", "swap × wide", "swap × wider"]
    assert plan.arms[-1].factors == ("one/swap", "other/wider")
    assert sorted(one.setting for one in plan.arms[-1].changes) == ["M.ffn.inter_dim", "order"]
    with pytest.raises(AblationError, match="--cross must have two experiments"):
        make_plan([one], scale="full", seeds=2, cross=True)
