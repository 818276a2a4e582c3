"""A whole ablation in this process: pairing, reuse, arms that diverge, crash or run out of memory, and what the report says of it."""

import json
import math

import pytest
import torch

from hymo.ablate import conduct as conducting
from hymo.ablate.conduct import as_run, conduct, make_specs
from hymo.ablate.plan import AGAIN
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

    folder = conducting.folder_of(plan, site.store)
    assert {**json.loads((folder / "result.json").read_text()), "folder": str(folder)} == json.loads(json.dumps(result))

    again = conduct(plan, site)
    assert again == {**result, "reused": 8}


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


def test_arms_that_crash_or_run_out_of_memory_are_reported_and_the_others_finish(plan_of, site, monkeypatch):
    import hymo.train

    real, faults = hymo.train.train, {32: RuntimeError("device on fire"), 64: torch.OutOfMemoryError("no room")}

    def train(recipe, **options):
        if recipe.model.layers["M"].ffn.inter_dim in faults:
            raise faults[recipe.model.layers["M"].ffn.inter_dim]
        return real(recipe, **options)

    text = with_arms("x2: {model.layers.M.ffn.inter_dim: x2}", "x4: {model.layers.M.ffn.inter_dim: x4}", "swap: {model.swap: [[0, 1]]}")
    monkeypatch.setattr(hymo.train, "train", train, raising=False)
    found = rows(conduct(plan_of(text), site))
    assert found["x2"]["words"] == "failed in 2 of 2 seeds (device on fire)"
    assert found["x4"]["words"] == "out of memory in 2 of 2 seeds (no room)"
    assert found["swap"]["statuses"] == ["finished"] * 2
    assert "device on fire" in (site.store.run(found["x2"]["keys"][0]) / "error.txt").read_text()
    faults.clear()
    repaired = conduct(plan_of(text), site)
    assert repaired["reused"] == 4  # a failure is no result: it is tried again
    assert rows(repaired)["x4"]["statuses"] == ["finished"] * 2


def noisy(size):
    """A loss of 3 that wobbles by `size` from run to run, the same for the same run."""
    return lambda arm, seed: 3 + size * math.sin(hash_of(arm) + 7 * seed)


def hash_of(arm):
    return sum(map(ord, arm))


def test_more_seeds_go_on_from_those_that_are_there(plan_of, told):
    conduct(plan_of(seeds=2), told(noisy(0.1)))
    assert conduct(plan_of(seeds=3), told(noisy(0.1)))["reused"] == 6


def test_fresh_ignores_what_is_there(plan_of, told):
    conduct(plan_of(), told(noisy(0.1)))
    assert conduct(plan_of(), told(noisy(0.2)))["rows"][0]["values"] == [noisy(0.1)("baseline", seed) for seed in (0, 1)]
    again = conduct(plan_of(), told(noisy(0.2)), fresh=True)
    assert again["reused"] == 0
    assert again["rows"][0]["values"] == [noisy(0.2)("baseline", seed) for seed in (0, 1)]


def test_until_decided_stops_at_the_first_look_that_decides(plan_of, told):
    clear = conduct(plan_of(seeds=6, looks=[3, 6]), told(lambda arm, seed: 3.0 + (arm != "baseline") + 0.001 * math.sin(7 * seed + hash_of(arm))))
    assert clear["seeds"] == [0, 1, 2]
    assert [row["words"] for row in clear["rows"][1:]] == ["worse", "worse"]
    assert (clear["looks"], clear["shares"]) == ([3, 6], pytest.approx([0.025, 0.025]))


def test_until_decided_goes_on_while_an_arm_is_open(plan_of, told):
    site = told(noisy(0.05))
    result = conduct(plan_of(seeds=5, looks=[3, 5]), site)
    assert result["seeds"] == [0, 1, 2, 3, 4]
    assert result["interval"] == pytest.approx(1 - 0.05 * 2 / 5)
    assert "not decided after 3 seeds: swap, wide; on to 5" in said(site)
    assert not result["best"]["named"]


def test_a_primary_metric_that_no_run_has_is_an_error(plan_of, told):
    with pytest.raises(
        AblationError, match=r"ablation.yaml:[0-9]+:1: primary must be a metric of a finished run, but got 'val/los'; did you mean 'val/loss'"
    ):
        conduct(plan_of(EXPERIMENT.replace("match: none", "match: none\nprimary: val/los")), told(noisy(0.1)))
