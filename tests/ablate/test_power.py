import pytest
from statsmodels.stats.power import TTestPower

from hymo.ablate.power import alpha_shares, detectable_effect, power, seeds_needed
from hymo.errors import AblationError


@pytest.mark.parametrize(("seeds", "effect"), [(3, 3.26), (4, 2.13), (5, 1.68), (6, 1.43), (8, 1.16), (10, 1.00)])
def test_detectable_effect_of_one_comparison(seeds, effect):
    assert detectable_effect(seeds) == pytest.approx(effect, abs=0.0051)


@pytest.mark.parametrize(("seeds", "effect"), [(3, 6.55), (5, 2.48)])
def test_detectable_effect_at_holms_first_step_among_four_arms(seeds, effect):
    assert detectable_effect(seeds, arms=4) == pytest.approx(effect, abs=0.0051)


@pytest.mark.parametrize("seeds", [3, 5, 12])
@pytest.mark.parametrize("effect", [0.3, 1.0, 2.0])
def test_power_agrees_with_statsmodels(seeds, effect):
    assert power(effect, seeds) == pytest.approx(TTestPower().power(effect, seeds, 0.05), abs=1e-9)


def test_one_seed_detects_nothing():
    assert detectable_effect(1) == float("inf")


@pytest.mark.parametrize(("effect", "needed"), [(0.2, 199), (1.0, 10), (100.0, 2)])
def test_seeds_needed_is_the_first_number_with_80_percent_power(effect, needed):
    assert seeds_needed(effect) == needed
    assert power(effect, needed) >= 0.8
    assert needed == 2 or power(effect, needed - 1) < 0.8


@pytest.mark.parametrize("effect", [0.01, 0.0, float("nan")])
def test_seeds_needed_gives_up_beyond_a_thousand(effect):
    assert seeds_needed(effect) is None


def test_alpha_shares_are_spent_in_proportion_to_the_seeds():
    assert alpha_shares([3, 5, 10]) == pytest.approx([0.015, 0.010, 0.025])
    assert alpha_shares([4], alpha=0.1) == pytest.approx([0.1])


@pytest.mark.parametrize("looks", [[], [1, 5], [5, 5], [5, 3]])
def test_looks_that_cannot_be_planned_are_refused(looks):
    with pytest.raises(AblationError, match="looks must be increasing"):
        alpha_shares(looks)
