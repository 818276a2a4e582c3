"""Against known truth: worked examples, scipy and statsmodels one ablation at a time, and thousands of simulated ablations."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from hymo.ablate.statistics import best, holm, interaction, judge, judge_at_looks, noise_floor
from hymo.ablate.verdict import Verdict
from hymo.errors import AblationError

ABLATIONS, ARMS = 20_000, 4
SD = 0.01


def simulate(effect, seeds, arms=ARMS, ablations=ABLATIONS, seed=0):
    """Differences (ablations, arms, seeds) that share the baseline's noise, as real arms do."""
    random = np.random.default_rng(seed)
    baseline = random.normal(size=(ablations, 1, seeds))
    own = random.normal(size=(ablations, arms, seeds))
    return np.asarray(effect).reshape(-1, 1) + SD * (own - baseline) / np.sqrt(2)


def bound(rate, trials, sigmas=4.0):
    """Half-width of the binomial band around `rate`: a fixed-seed simulation outside it is a fault of the code, not of chance."""
    return sigmas * np.sqrt(rate * (1 - rate) / trials)


# -- one ablation, against scipy and statsmodels ----------------------------------------------------------------------------------


def test_interval_p_and_tost_agree_with_the_libraries():
    x = np.array([[0.010, 0.014, 0.009, 0.012, 0.011], [0.001, -0.002, 0.000, 0.002, -0.001]])
    result = judge(x, delta_min=0.005, margin=0.004)
    for arm in range(2):
        test = stats.ttest_1samp(x[arm], 0)
        assert result.p[arm] == pytest.approx(test.pvalue, rel=1e-12)
        interval = test.confidence_interval(0.95)
        assert (result.low[arm], result.high[arm]) == pytest.approx((interval.low, interval.high), rel=1e-12)
        assert result.p_tost[arm] == pytest.approx(DescrStatsW(x[arm]).ttost_mean(-0.004, 0.004)[0], rel=1e-12)
    assert list(result.verdict) == [Verdict.WORSE, Verdict.EQUIVALENT]


def test_tost_is_the_90_percent_interval_inside_the_margin():
    x = simulate(0.0, 6, ablations=500)
    result = judge(x, delta_min=0.02, margin=0.01)
    narrow = judge(x, delta_min=0.02, margin=0.01, alpha=0.10)
    np.testing.assert_array_equal(result.p_tost < 0.05, (narrow.low > -0.01) & (narrow.high < 0.01))


def test_holm_agrees_with_statsmodels():
    p = np.random.default_rng(1).uniform(size=(50, 7)) ** 3
    expected = [multipletests(row, method="holm")[1] for row in p]
    np.testing.assert_allclose(holm(p), expected, rtol=1e-12)


# -- precedence of the verdicts ---------------------------------------------------------------------------------------------------


def spread(mean, sd):
    """Five differences with exactly this mean and standard deviation."""
    shape = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    return mean + sd * shape / shape.std(ddof=1)


@pytest.mark.parametrize(
    ("mean", "sd", "delta_min", "margin", "verdict"),
    [
        (0.02, 0.002, 0.01, 0.01, Verdict.WORSE),
        (-0.02, 0.002, 0.01, 0.01, Verdict.BETTER),
        (0.004, 0.001, 0.01, 0.01, Verdict.NEGLIGIBLE),  # significant, and its interval inside ±delta_min: before TOST, which holds too
        (0.004, 0.001, 0.0045, 0.01, Verdict.EQUIVALENT),  # significant, its interval crosses delta_min
        (0.0005, 0.001, 0.01, 0.01, Verdict.EQUIVALENT),
        (0.004, 0.001, 0.0045, 0.0045, Verdict.INCONCLUSIVE),
        (0.004, 0.02, 0.01, 0.01, Verdict.INCONCLUSIVE),
        (0.0, 0.0, 0.01, 0.01, Verdict.EQUIVALENT),  # an arm that computes what the baseline computes
        (0.02, 0.0, 0.01, 0.01, Verdict.WORSE),
    ],
)
def test_precedence(mean, sd, delta_min, margin, verdict):
    assert judge([spread(mean, sd)], delta_min=delta_min, margin=margin).verdict[0] == verdict


def test_a_diverged_seed_makes_its_arm_unstable_and_stays_in_the_family():
    good = spread(0.0063, 0.0030)  # p = 0.0094: passes alone and among two, not among six
    crowd = [good] + [[np.nan, 0, 0, 0, 0]] * 5
    assert judge([good], delta_min=0.001, margin=0.001).verdict[0] == Verdict.WORSE
    result = judge(crowd, delta_min=0.001, margin=0.001)
    assert list(result.verdict) == [Verdict.INCONCLUSIVE] + [Verdict.UNSTABLE] * 5
    assert np.isnan(result.mean[1])
    assert np.isnan(result.high[1])


def test_an_infinite_loss_is_unstable_too():
    assert judge([[0.0, np.inf, 0.0]], delta_min=1, margin=1).verdict[0] == Verdict.UNSTABLE


def test_unresolved_lr_hides_a_winner_but_not_a_divergence():
    x = np.array([spread(-0.02, 0.002), np.full(5, np.nan)])
    result = judge(x, delta_min=0.01, margin=0.01, lr_unresolved=[True, True])
    assert list(result.verdict) == [Verdict.LR_UNRESOLVED, Verdict.UNSTABLE]


def test_higher_is_better_turns_the_verdict_round():
    x = np.array([spread(0.2, 0.02), spread(0.2, 0.02)])
    assert list(judge(x, delta_min=0.1, margin=0.1, lower_is_better=[True, False]).verdict) == [Verdict.WORSE, Verdict.BETTER]


def test_one_seed_never_names_a_winner():
    result = judge([[-5.0]], delta_min=0.01, margin=0.01)
    assert result.verdict[0] == Verdict.INCONCLUSIVE
    assert "one seed never names a winner" in result.words(0)


@pytest.mark.parametrize("name", ["delta_min", "margin"])
@pytest.mark.parametrize("value", [0, -0.1, float("nan")])
def test_bounds_must_be_positive(name, value):
    with pytest.raises(AblationError, match=f"{name} must be above 0"):
        judge([[0.0, 1.0]], **{"delta_min": 1, "margin": 1, name: value})


def test_words_count_the_seeds_still_needed():
    # d_z = 1: ten seeds alone at 80 % power, fifteen at Holm's first step among four
    alone = judge([spread(0.02, 0.02)], delta_min=0.01, margin=0.001)
    assert alone.words(0) == "inconclusive: needs 5 more seeds"
    four = judge([spread(0.02, 0.02)] * 4, delta_min=0.01, margin=0.001)
    assert four.words(0) == "inconclusive: needs 10 more seeds"
    assert four.detectable(0) == pytest.approx(2.4768 * 0.02, rel=1e-3)
    assert four.detectable(0, corrected=False) == pytest.approx(1.6822 * 0.02, rel=1e-3)
    hopeless = judge([spread(0.0, 1.0)], delta_min=0.01, margin=0.001)
    assert hopeless.words(0) == "inconclusive: needs over 1000 seeds"


# -- thousands of ablations with a known truth ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [3, 5])
def test_no_effect_gives_a_winner_in_at_most_5_percent_of_ablations(seeds):
    result = judge(simulate(0.0, seeds), delta_min=1e-9, margin=0.02)
    wrong = np.isin(result.verdict, [Verdict.BETTER, Verdict.WORSE]).any(axis=-1).mean()
    assert wrong <= 0.05 + bound(0.05, ABLATIONS)
    assert wrong > 0.02  # and the correction is not so strict that nothing could ever be found


@pytest.mark.parametrize(("effect", "seeds"), [(0.0, 3), (0.013, 3), (-0.02, 5), (0.005, 10)])
def test_the_95_percent_interval_covers_the_truth(effect, seeds):
    result = judge(simulate(effect, seeds), delta_min=0.01, margin=0.01)
    assert 0.93 <= ((result.low <= effect) & (effect <= result.high)).mean() <= 0.97


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_equivalence_is_declared_in_5_percent_at_the_margin(seeds):
    margin = 5 * SD / np.sqrt(seeds)  # five standard errors: far enough from −margin for one bound to rule
    result = judge(simulate(margin, seeds, arms=1), delta_min=2 * margin, margin=margin)
    assert (result.p_tost < 0.05).mean() == pytest.approx(0.05, abs=bound(0.05, ABLATIONS))
    assert (result.verdict == Verdict.EQUIVALENT).mean() <= 0.05 + bound(0.05, ABLATIONS)


def test_a_difference_of_the_margin_is_called_small_in_5_percent_among_four_arms():
    margin = 5 * SD / np.sqrt(3)
    result = judge(simulate(margin, 3), delta_min=margin, margin=margin)
    small = np.isin(result.verdict, [Verdict.EQUIVALENT, Verdict.NEGLIGIBLE])
    assert small.mean() == pytest.approx(0.05, abs=bound(0.05, ABLATIONS))
    assert (result.verdict == Verdict.EQUIVALENT).mean() > 0.02


def test_an_effect_of_the_detectable_size_is_found_four_times_in_five():
    effect = 1.6822 * SD
    found = judge(simulate(effect, 5, arms=1), delta_min=1e-9, margin=1e-9).verdict == Verdict.WORSE
    assert found.mean() == pytest.approx(0.80, abs=bound(0.80, ABLATIONS))


def test_looking_after_every_seed_at_full_alpha_would_find_effects_that_are_not_there():
    x = simulate(0.0, 10, arms=1)
    careless = np.any([judge(x[..., :n], delta_min=1e-9, margin=1e-9).verdict == Verdict.WORSE for n in range(3, 11)], axis=0) | np.any(
        [judge(x[..., :n], delta_min=1e-9, margin=1e-9).verdict == Verdict.BETTER for n in range(3, 11)], axis=0
    )
    assert careless.mean() == pytest.approx(0.166, abs=0.01)
    _, standing = judge_at_looks(x, range(3, 11), delta_min=1e-9, margin=1e-9)
    assert np.isin(standing, [Verdict.BETTER, Verdict.WORSE]).mean() <= 0.05


def test_until_decided_keeps_the_family_at_5_percent_and_keeps_its_power():
    looks = [3, 5, 10]
    _, standing = judge_at_looks(simulate(0.0, 10), looks, delta_min=1e-9, margin=1e-9)
    assert np.isin(standing, [Verdict.BETTER, Verdict.WORSE]).any(axis=-1).mean() <= 0.05
    reached, standing = judge_at_looks(simulate(3 * SD, 10), looks, delta_min=SD, margin=SD)
    assert (standing == Verdict.WORSE).mean() > 0.98
    assert [judgement.seeds for judgement in reached] == looks


def test_a_standing_verdict_is_that_of_the_first_look_that_gave_one():
    x = np.array([np.concatenate([spread(0.02, 0.001), spread(-0.5, 0.3)])])
    reached, standing = judge_at_looks(x, [5, 10], delta_min=0.01, margin=0.01)
    assert [str(judgement.verdict[0]) for judgement in reached] == [Verdict.WORSE, Verdict.INCONCLUSIVE]
    assert standing[0] == Verdict.WORSE
    partly, _ = judge_at_looks(x[..., :7], [5, 10], delta_min=0.01, margin=0.01)
    assert [judgement.alpha for judgement in partly] == [0.025]
    with pytest.raises(AblationError, match="the first look needs 5 seeds"):
        judge_at_looks(x[..., :4], [5, 10], delta_min=0.01, margin=0.01)


# -- the best arm, the noise floor, the factorial ---------------------------------------------------------------------------------


def test_naming_the_best_of_five_equal_arms_is_wrong_in_at_most_5_percent():
    values = simulate(0.0, 4, arms=5)
    assert best(values).named.mean() <= 0.05


def test_best_is_tested_against_the_runner_up():
    values = np.array([[3.0, 3.1, 3.2], [2.0, 2.11, 2.19], [2.5, 2.61, 2.70], [np.nan, 1.0, 1.0]])
    result = best(values)
    assert (int(result.index), int(result.runner_up)) == (1, 2)
    assert result.p == pytest.approx(stats.ttest_rel(values[1], values[2]).pvalue)
    assert result.mean == pytest.approx(-0.5, abs=0.01)
    assert bool(result.named)


def test_one_stable_candidate_is_not_a_best():
    assert not best(np.array([[1.0, 1.1], [np.nan, 1.0]])).named


def test_noise_floor_measures_the_pairing():
    random = np.random.default_rng(0)
    shared = random.normal(size=4000)
    spread_, correlation = noise_floor(shared + 0.5 * random.normal(size=4000), shared + 0.5 * random.normal(size=4000))
    assert spread_ == pytest.approx(0.5 * np.sqrt(2), rel=0.05)
    assert correlation == pytest.approx(1 / 1.25, rel=0.05)
    with pytest.raises(AblationError, match="two seeds at least"):
        noise_floor([1.0], [1.0])


def test_interaction_is_zero_when_effects_add():
    base = np.array([3.0, 3.1])
    assert interaction(base, base + 0.1, base - 0.2, base - 0.1) == pytest.approx([0.0, 0.0])
    assert interaction(base, base + 0.1, base - 0.2, base + 0.4) == pytest.approx([0.5, 0.5])
