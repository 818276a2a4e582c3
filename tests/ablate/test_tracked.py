"""One run for the ablation, one below it for each arm, the seeds below their arm: in a real MLflow store."""

import pytest

from hymo.ablate import conduct as conducting
from hymo.ablate.conduct import conduct
from hymo.tracking import client


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(conducting, "measured", lambda store, spec: {"tokens_per_s": 100.0, "bytes_peak": 1e6})


def test_the_tree_in_mlflow(plan_of, site, store):
    plan = plan_of(only=["wide"], overrides=[f"run.tracking={store}", "run.experiment=questions"])
    conduct(plan, site)
    server = client(store)
    runs = server.search_runs([server.get_experiment_by_name("questions").experiment_id])
    by_name = {run.info.run_name: run for run in runs}
    parent = {name: run.data.tags.get("mlflow.parentRunId") for name, run in by_name.items()}
    top = by_name["order (full)"]
    assert parent == {
        "order (full)": None,
        **dict.fromkeys(("baseline", "wide"), top.info.run_id),
        **{f"{arm} seed {seed}": by_name[arm].info.run_id for arm in ("baseline", "wide") for seed in (0, 1)},
    }
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert "The order does not matter." in top.data.tags["mlflow.note.content"]
    assert top.data.tags["verdict.wide"] == by_name["wide"].data.tags["verdict"]
    assert {file.path for file in server.list_artifacts(top.info.run_id)} == {"result.json", "report.html", "experiments"}
    assert {file.path for file in server.list_artifacts(by_name["wide"].info.run_id)} == {"recipe.yaml", "difference.md"}
    wide = by_name["wide"].data.metrics
    assert wide["cost/params_active"] == plan.arms[0].cost.active
    assert wide["speed/tokens_per_s"] == 100.0
    assert {"difference/mean", "difference/p_holm"} <= wide.keys()
    seeds = [by_name[f"wide seed {seed}"].data.metrics["val/loss"] for seed in (0, 1)]
    assert wide["val/loss"] == pytest.approx(sum(seeds) / 2)
