"""What an ablation says, from outcomes that are made up here."""

import math
from dataclasses import replace

import pytest

from hymo.ablate.definition import load
from hymo.ablate.plan import AGAIN, make_plan
from hymo.ablate.result import summarise
from hymo.ablate.store import Outcome, Status
from hymo.ablate.table import seed_values, sentences
from tests.ablate.conftest import EXPERIMENT, outcome_of
from tests.ablate.test_plan import with_arms

SPEEDS = {"baseline": {"tokens_per_s": 200.0, "bytes_peak": 3e8}, "wide": {"tokens_per_s": 100.0, "bytes_peak": 4e8}}


def say(plan, losses):
    """The summary of the plan when `losses` holds, by arm, one held-out loss a seed; an Outcome stands for itself."""
    outcomes = {
        (arm, seed): loss if isinstance(loss, Outcome) else outcome_of(loss)
        for arm, values in losses.items()
        for seed, loss in zip(plan.seeds, values, strict=True)
    }
    keys = {at: f"{at[0]}{at[1]}" for at in outcomes}
    return summarise(plan, outcomes, SPEEDS, keys, 0)


def rows(result):
    return {row["arm"]: row for row in result["rows"]}


BASE = [3.00, 3.10, 3.05]


def test_a_row_holds_costs_differences_and_the_verdict(plan_of):
    result = say(plan_of(seeds=3), {"baseline": BASE, "swap": [value + 0.001 * i for i, value in enumerate(BASE, -1)], "wide": [2.80, 2.91, 2.85]})
    found = rows(result)
    assert found["wide"]["mean"] == pytest.approx(-0.19667, abs=1e-4)
    assert found["wide"]["low"] < found["wide"]["mean"] < found["wide"]["high"]
    assert found["wide"]["words"] == "better"
    assert found["swap"]["words"] == "equivalent"
    assert found["wide"]["speed_ratio"] == 0.5
    assert found["swap"]["speed_ratio"] is None  # it was never measured
    assert found["wide"]["keys"] == ["wide0", "wide1", "wide2"]
    assert found["wide"]["active_change"] == pytest.approx(3 * 16 * 16 / found["baseline"]["active"])
    assert result["best"] == {
        "arm": "wide",
        "runner_up": "baseline",
        "difference": pytest.approx(-0.19667, abs=1e-4),
        "p": pytest.approx(0.0003, abs=2e-4),
        "named": True,
    }


def test_probes_are_secondary_and_corrected_together(plan_of):
    result = say(plan_of(seeds=3), {"baseline": BASE, "swap": BASE, "wide": [2.80, 2.91, 2.85]})
    found = {one["arm"]: one for one in result["secondary"]}
    assert {one["metric"] for one in result["secondary"]} == {"probe/length/loss_2x"}
    assert found["wide"]["mean"] == pytest.approx(-0.19667, abs=1e-4)
    assert found["wide"]["p_holm"] == pytest.approx(2 * rows(result)["wide"]["p"])


def test_differences_are_of_the_metric_that_decides(plan_of):
    text = EXPERIMENT.replace("match: none", "match: none\nbetter: higher\nprimary: probe/task/accuracy")
    scores = {"baseline": [0.25, 0.5], "swap": [0.5, 0.75], "wide": [0.25, 0.5]}
    runs = {
        arm: [replace(outcome_of(3.0 + seed), metrics={"val/loss": 3.0 + seed, "probe/task/accuracy": score}) for seed, score in enumerate(found)]
        for arm, found in scores.items()
    }
    result = say(plan_of(text, seeds=2), runs)
    found = rows(result)
    assert result["primary"] == "probe/task/accuracy"
    assert found["baseline"]["values"] == [0.25, 0.5]
    assert found["swap"]["differences"] == [0.25, 0.25]
    assert found["wide"]["differences"] == [0.0, 0.0]
    assert seed_values(result, found["baseline"]) == ["0.2500", "0.5000"]
    assert seed_values(result, found["swap"]) == ["+0.2500", "+0.2500"]


def test_trouble_is_said_in_words(plan_of):
    lost = Outcome(Status.OUT_OF_MEMORY, error="no room")
    result = say(plan_of(seeds=3), {"baseline": BASE, "swap": [3.0, math.nan, math.nan], "wide": [3.0, 3.1, lost]})
    found = rows(result)
    assert (found["swap"]["verdict"], found["swap"]["words"]) == ("unstable", "unstable: diverged in 2 of 3 seeds (at step 3)")
    assert (found["wide"]["verdict"], found["wide"]["words"]) == ("inconclusive", "out of memory in 1 of 3 seeds (no room)")
    assert found["wide"]["values"] == [3.0, 3.1, None]
    assert found["wide"]["mean"] is None


def test_a_baseline_that_diverges_decides_nothing(plan_of):
    result = say(plan_of(seeds=3), {"baseline": [3.0, math.nan, 3.0], "swap": BASE, "wide": BASE})
    assert rows(result)["swap"]["words"] == "inconclusive: the baseline diverged in 1 of 3 seeds (at step 3)"


def test_a_speed_that_neighbours_disturbed_is_said(plan_of, monkeypatch):
    runs = {"baseline": BASE, "swap": BASE, "wide": BASE}
    assert not any("not to be trusted" in sentence for sentence in sentences(say(plan_of(seeds=3), runs)))
    monkeypatch.setitem(SPEEDS, "wide", {**SPEEDS["wide"], "processor": 0.52})
    assert any("got 52% of its time" in sentence for sentence in sentences(say(plan_of(seeds=3), runs)))


def test_the_aa_arm_is_the_noise_floor_and_no_member_of_the_family(plan_of):
    result = say(plan_of(seeds=3, again=True), {"baseline": BASE, AGAIN: [3.01, 3.09, 3.06], "swap": BASE, "wide": BASE})
    assert result["noise_floor"]["sd"] == pytest.approx(0.011547, abs=1e-6)
    assert result["noise_floor"]["correlation"] == pytest.approx(0.9897, abs=1e-3)
    assert "words" not in rows(result)[AGAIN]
    assert "Holm over 2 arms" in sentences(result)[0]


def test_higher_is_better_where_the_experiment_says_so(plan_of):
    text = EXPERIMENT.replace("match: none", "match: none\nbetter: higher")
    result = say(plan_of(text, seeds=3), {"baseline": BASE, "swap": BASE, "wide": [2.80, 2.91, 2.85]})
    assert rows(result)["wide"]["words"] == "worse"
    assert result["best"]["arm"] in ("baseline", "swap")


def test_the_factorial_reports_its_interaction(write_experiment):
    one = load(write_experiment("one", with_arms("swap: {model.swap: [[0, 1]]}")))
    other = load(write_experiment("other", with_arms("wide: {model.layers.M.ffn.inter_dim: x2}")))
    plan = make_plan([one, other], scale="full", seeds=3, cross=True)
    wobble = (0.001, -0.001, 0.0)
    losses = {
        label: [value + add + w * k for value, w in zip(BASE, wobble, strict=True)]
        for k, (label, add) in enumerate({"baseline": 0, "one/swap": 0.1, "other/wide": -0.1, "swap × wide": 0.2}.items())
    }
    result = say(plan, losses)
    (cell,) = result["interactions"]
    assert cell["mean"] == pytest.approx(0.2)  # (0.2 − 0.1) − (−0.1 − 0)
    assert cell["words"] == "less than the sum"
    assert any(sentence.startswith("Interaction swap × wide: +0.2000 [") for sentence in sentences(result))


def test_a_probe_that_could_not_be_made_is_said(plan_of):
    bare = Outcome(Status.FINISHED, {"val/loss": 3.0}, left_out={"needle": "rows too short"})
    result = say(plan_of(seeds=2, only=["swap"]), {"baseline": [bare, bare], "swap": [bare, bare]})
    assert result["left_out"] == ["probe needle: rows too short"]
    assert result["secondary"] == []
