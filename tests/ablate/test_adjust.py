import math

import pytest

from hymo.ablate import conduct as conducting
from hymo.ablate.adjust import check_factors, tries
from hymo.ablate.conduct import conduct
from hymo.errors import AblationError
from tests.ablate.test_plan import with_arms

WIDE = "wide: {model.layers.M.ffn.inter_dim: x2}"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    speeds = {"wide": 50.0}
    monkeypatch.setattr(conducting, "measured", lambda store, spec: {"tokens_per_s": speeds.get(spec.name.split()[0], 100.0), "bytes_peak": 1e6})
    monkeypatch.setattr(conducting, "write_report", lambda path, *rest: path.write_text("report"))


def rows(result):
    return {row["arm"]: row for row in result["rows"]}


@pytest.mark.parametrize("factors", [[1.0, 2.0], [0.5, 2.0, 4.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
def test_three_rates_at_least_with_the_recipes_own(factors):
    with pytest.raises(AblationError, match="needs three factors"):
        check_factors(factors)


def test_tries_scale_both_rates_on_a_seed_of_their_own(plan_of):
    plan = plan_of(with_arms(WIDE))
    tried = tries(plan, (0.5, 1.0, 2.0))
    assert tried.seeds == (500_009,)
    assert [arm.label for arm in tried.everything] == [f"{arm} lr x{factor}" for arm in ("baseline", "wide") for factor in ("0.5", "1", "2")]
    half = tried.everything[0].recipe.optimizer
    assert (half.normuon.lr, half.adamw.lr) == (2.5e-3, 2.5e-3)


def losses(best):
    """A loss that is lowest where the arm's learning rate has the factor best[arm]; the tries say theirs in their label."""

    def value(arm, seed):
        name, _, factor = arm.partition(" lr x")
        return 3 + 0.1 * abs(math.log(float(factor) / best[name])) if factor else 3 + 0.01 * seed + (name == "wide")

    return value


def test_every_arm_gets_its_own_best_rate(plan_of, told):
    result = conduct(plan_of(with_arms(WIDE), seeds=3), told(losses({"baseline": 1.0, "wide": 2.0})), rates=(0.5, 1.0, 2.0, 4.0))
    found = rows(result)
    assert found["baseline"]["notes"] == ["learning rates x1, the best of x0.5, x1, x2, x4"]
    assert found["wide"]["notes"] == ["learning rates x2, the best of x0.5, x1, x2, x4"]
    assert found["wide"]["verdict"] == "worse"


@pytest.mark.parametrize("best", [{"baseline": 1.0, "wide": 4.0}, {"baseline": 0.5, "wide": 1.0}])
def test_a_best_rate_at_the_edge_leaves_the_arm_unresolved(plan_of, told, best):
    result = conduct(plan_of(with_arms(WIDE), seeds=3), told(losses(best)), rates=(0.5, 1.0, 2.0, 4.0))
    assert rows(result)["wide"]["words"] == "lr unresolved"


def test_an_arm_that_diverges_at_every_rate_is_unresolved_too(plan_of, told):
    def value(arm, seed):
        return math.nan if arm.startswith("wide lr") else losses({"baseline": 1.0})(arm, seed)

    result = conduct(plan_of(with_arms(WIDE), seeds=3), told(value), rates=(0.5, 1.0, 2.0))
    assert rows(result)["wide"]["words"] == "lr unresolved"
    assert rows(result)["wide"]["notes"] == ["no learning rate of x0.5, x1, x2 gives a finite result"]


def test_arms_matched_in_time_get_the_steps_that_their_speed_allows(plan_of, told, site):
    result = conduct(plan_of(with_arms(WIDE, match="wall_time")), told(losses({})))
    assert rows(result)["wide"]["notes"] == ["2 steps for 4, equal time at 0.50x"]
    assert rows(result)["wide"]["changes"] == ["M.ffn.inter_dim: 16 → 32  [layers 0]"]
    assert {site.store.spec(key).recipe["train"]["steps"] for key in rows(result)["wide"]["keys"]} == {2}
