"""A whole ablation in this process: pairing, reuse, arms that diverge, crash or run out of memory, and what the report says of it."""

import json

import pytest
import torch

from hymo.ablate import conduct as conducting
from hymo.ablate.conduct import as_run, conduct, make_specs
from hymo.ablate.definition import load
from hymo.ablate.plan import AGAIN, make_plan
from hymo.ablate.table import sentences
from hymo.data import open_data
from hymo.errors import AblationError
from hymo.model import build_hymo
from tests.ablate.conftest import EXPERIMENT
from tests.ablate.test_plan import with_arms


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Speeds are measured in processes of their own (test_engine.py), and one report is enough (test_report.py)."""
    monkeypatch.setattr(conducting, "measured", lambda store, spec: {"tokens_per_s": 100.0, "bytes_peak": 1e6})
    monkeypatch.setattr(conducting, "write_report", lambda path, *rest: path.write_text("report"))


def said(site):
    """What was said to the user."""
    return site.say.__self__


def rows(result):
    return {row["arm"]: row for row in result["rows"]}


def test_pairing_shared_parameters_start_bit_equal_and_batches_are_the_same(plan_of):
    plan = plan_of(with_arms("swap: {model.swap: [[0, 1]]}", "wide: {model.layers.M.ffn.inter_dim: x2}"))
    recipes = [as_run(arm.recipe, 1) for arm in plan.everything]
    models = [build_hymo(recipe) for recipe in recipes]
    base = {name: models[0].get_parameter(path) for path, name in models[0].logical_names.items()}
    for model, changed in zip(models[1:], ([], ["M0.ffn."]), strict=True):
        names = {name: path for path, name in model.logical_names.items()}
        assert names.keys() == base.keys()
        for name, path in names.items():
            if not any(name.startswith(prefix) for prefix in changed):
                assert torch.equal(model.get_parameter(path), base[name]), name
    streams = [open_data(recipe).train() for recipe in recipes]
    for _ in range(3):
        first, *others = [stream.take(2) for stream in streams]
        assert all(torch.equal(batch.tokens, first.tokens) and torch.equal(batch.documents, first.documents) for batch in others)


def test_an_ablation_from_plan_to_report_and_again(plan_of, site):
    plan = plan_of(seeds=2, again=True)
    result = conduct(plan, site)
    found = rows(result)
    assert [*found] == ["baseline", AGAIN, "swap", "wide"]
    assert all(row["statuses"] == ["finished"] * 2 for row in found.values())
    assert found["wide"]["mean"] == pytest.approx(sum(a - b for a, b in zip(found["wide"]["values"], found["baseline"]["values"], strict=True)) / 2)
    assert found["swap"]["verdict"] in ("inconclusive", "equivalent", "better", "worse", "real but negligible")
    assert found["wide"]["active_change"] > 0
    assert found["wide"]["speed_ratio"] == 1.0
    assert result["noise_floor"]["sd"] > 0
    assert found[AGAIN]["values"] != found["baseline"]["values"]
    metrics = [*(f"probe/length/loss_{factor}x" for factor in (1, 2, 4)), "probe/mqar/accuracy"]
    assert [*plan.probes] == ["length", "mqar"]  # rows of 16 tokens are too short for a needle, and text is no task
    assert {(one["arm"], one["metric"]) for one in result["secondary"]} == {(a, m) for a in ("swap", "wide") for m in metrics}

    folder = conducting.folder_of(plan, site)
    assert {**json.loads((folder / "result.json").read_text()), "folder": str(folder)} == json.loads(json.dumps(result))

    again = conduct(plan, site)
    assert again == {**result, "reused": 8}
    assert conduct(plan_of(seeds=3, again=True), site)["reused"] == 8  # more seeds, the same runs


def test_fresh_runs_again_and_gives_the_same_numbers(plan_of, site):
    first = rows(conduct(plan_of(), site))
    again = conduct(plan_of(), site, fresh=True)
    assert again["reused"] == 0
    assert {arm: row["values"] for arm, row in rows(again).items()} == {arm: row["values"] for arm, row in first.items()}


def test_a_run_cut_short_goes_on_and_ends_bit_equal(plan_of, site):
    from hymo.ablate.worker import train_spec

    plan = plan_of(seeds=2, overrides=["run.checkpoint_every=1"])
    spec = make_specs(plan, site, site.store.root / "a")["wide", 0]
    site.store.write_spec(spec)
    steps = iter(range(100))
    assert train_spec(site.store, spec, lambda: next(steps) >= 2) is None
    assert [*(site.store.run(spec.key) / "checkpoints").glob("step-*")]
    resumed = train_spec(site.store, spec, lambda: False)
    site.store.forget(spec.key)
    whole = train_spec(site.store, spec, lambda: False)
    assert resumed == whole


def test_an_arm_that_diverges_is_unstable_and_the_others_finish(plan_of, site):
    text = with_arms(
        "hot: {optimizer.adamw.lr: 1e30, optimizer.normuon.lr: 1e30}", "wide: {model.layers.M.ffn.inter_dim: x2}", factor="[optimizer, ffn]"
    )
    result = conduct(plan_of(text), site)
    found = rows(result)
    assert found["hot"]["verdict"] == "unstable"
    assert found["hot"]["words"].startswith("unstable: diverged in 2 of 2 seeds (at step ")
    assert found["hot"]["values"] == [None, None]
    assert found["wide"]["statuses"] == ["finished"] * 2
    assert conduct(plan_of(text), site)["reused"] == 6  # a divergence is a result


def test_a_changed_source_is_noticed_by_the_worker(plan_of, site, monkeypatch):
    real = conducting.ingredients
    monkeypatch.setattr(conducting, "ingredients", lambda *args: {**real(*args), "source": "older"})
    result = conduct(plan_of(only=["swap"]), site)
    assert "must be computed with what it was planned with, but got another source" in rows(result)["swap"]["words"]


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (RuntimeError("device on fire"), "failed", "failed in 2 of 2 seeds (device on fire)"),
        (torch.OutOfMemoryError("no room"), "out of memory", "out of memory in 2 of 2 seeds (no room)"),
    ],
)
def test_an_arm_that_crashes_is_reported_and_the_others_finish(plan_of, site, monkeypatch, error, status, words):
    import hymo.train

    real = hymo.train.train

    def train(recipe, **options):
        if recipe.model.layers["M"].ffn.inter_dim == 32:
            raise error
        return real(recipe, **options)

    monkeypatch.setattr(hymo.train, "train", train, raising=False)
    result = conduct(plan_of(), site)
    assert rows(result)["wide"]["statuses"] == [status] * 2
    assert rows(result)["wide"]["words"] == words
    assert rows(result)["swap"]["statuses"] == ["finished"] * 2
    monkeypatch.setattr(hymo.train, "train", real, raising=False)
    repaired = conduct(plan_of(), site)
    assert repaired["reused"] == 4  # a failure is no result: it is tried again
    assert rows(repaired)["wide"]["statuses"] == ["finished"] * 2


def test_until_decided_stops_at_the_first_look_that_decides(plan_of, site):
    sure = EXPERIMENT.replace("margin: 0.01", "margin: 100").replace("delta_min: 0.01", "delta_min: 100")
    result = conduct(plan_of(sure, seeds=4, looks=[2, 4]), site)
    assert result["seeds"] == [0, 1]
    assert {row["verdict"] for row in result["rows"] if "verdict" in row} <= {"equivalent", "real but negligible"}
    assert result["shares"] == [0.025, 0.025]
    unsure = EXPERIMENT.replace("margin: 0.01", "margin: 1.0e-9").replace("delta_min: 0.01", "delta_min: 1.0e-9")
    result = conduct(plan_of(unsure, seeds=3, looks=[2, 3]), site)
    assert result["interval"] == pytest.approx(1 - 0.05 / 3)
    assert result["seeds"] == [0, 1, 2] or all(row["verdict"] != "inconclusive" for row in result["rows"] if "verdict" in row)


def test_the_factorial_reports_its_interaction(write_experiment, site):
    one = load(write_experiment("one", with_arms("swap: {model.swap: [[0, 1]]}")))
    other = load(write_experiment("other", with_arms("wide: {model.layers.M.ffn.inter_dim: x2}")))
    result = conduct(make_plan([one, other], scale="full", seeds=2, cross=True), site)
    found = rows(result)
    (cell,) = result["interactions"]
    both, swap, wide = (found[label]["mean"] for label in ("swap × wide", "one/swap", "other/wide"))
    assert cell["mean"] == pytest.approx(both - swap - wide)
    assert any(sentence.startswith("Interaction swap × wide: ") for sentence in sentences(result))


def test_every_arm_is_tuned_on_a_seed_of_its_own_and_an_edge_is_unresolved(plan_of, site):
    text = with_arms("wide: {model.layers.M.ffn.inter_dim: x2}")
    result = conduct(plan_of(text), site, rates=(0.001, 1.0, 100.0))
    found = rows(result)
    assert "learning rates: 6 tries on seed 500009, which no verdict sees" in said(site)
    assert all("learning rates x" in row["notes"][-1] for row in found.values())
    factors = {arm: float(row["notes"][-1].split()[2].strip("x,")) for arm, row in found.items()}
    edges = {factor in (0.001, 100.0) for factor in factors.values()}
    assert (found["wide"]["verdict"] == "lr unresolved") == (True in edges)


def test_arms_matched_in_time_get_the_steps_that_their_speed_allows(plan_of, site, monkeypatch):
    monkeypatch.setattr(conducting, "measured", lambda store, spec: {"tokens_per_s": 50.0 if "wide" in spec.name else 100.0, "bytes_peak": 1e6})
    result = conduct(plan_of(with_arms("wide: {model.layers.M.ffn.inter_dim: x2}", match="wall_time")), site)
    assert rows(result)["wide"]["notes"] == ["2 steps for 4, equal time at 0.50x"]
    assert [step for step, _ in rows(result)["wide"]["curves"][0]] == [2]


def test_a_primary_metric_that_no_run_has_is_an_error(plan_of, site):
    with pytest.raises(
        AblationError, match=r"ablation.yaml:[0-9]+:1: primary must be a metric of a finished run, but got 'val/los'; did you mean 'val/loss'"
    ):
        conduct(plan_of(EXPERIMENT.replace("match: none", "match: none\nprimary: val/los")), site)
