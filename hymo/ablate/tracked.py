"""An ablation in MLflow's tree: one run for the ablation, one below it for each arm, the seeds below their arm (the workers log those).

Everything goes through journals (hymo/tracking.py), so that a server that is down stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hymo.ablate.plan import Arm, Plan
from hymo.recipe import dump
from hymo.tracking import MlflowTracker

COST = {  # under the names that runs log them by, so that arms and seeds share the columns of MLflow's table
    "cost/params_active": "active",
    "cost/params_stored": "stored",
    "cost/flops_per_token_train": "flops_per_token_train",
    "cost/state_bytes": "state_bytes",
    "speed/tokens_per_s": "tokens_per_s",
    "memory/bytes_peak": "bytes_peak",
}
DECISION = ("mean", "low", "high", "p", "p_holm", "p_tost", "detectable")


class Tracked:
    """Opens the tree before any worker starts, and closes it with the result."""

    def __init__(self, plan: Plan, folder: Path, arm_folder: Mapping[str, Path]) -> None:
        run = plan.baseline.recipe.run
        self.folder = folder
        questions = "\n\n".join(f"**{one.name}**: {one.definition.hypothesis}" for one in plan.experiments)
        tags = {"mlflow.note.content": questions, "hymo.kind": "ablation", "hymo.scale": plan.scale}
        self.top = MlflowTracker(None, folder, name=f"{plan.name} ({plan.scale})", experiment=run.experiment, tracking=run.tracking, tags=tags)
        self.top.start()
        for experiment in plan.experiments:
            self.top.text(experiment.path.read_text(), f"experiments/{experiment.name}.yaml")
        self.arms = {arm.label: self._arm(plan, arm, arm_folder[arm.label]) for arm in plan.everything}

    def _arm(self, plan: Plan, arm: Arm, folder: Path) -> MlflowTracker:
        run = plan.baseline.recipe.run
        changes = "\n".join(f"- {one}" for one in [*arm.changes, *arm.notes]) or "the base recipe"
        tags = {"mlflow.note.content": changes, "hymo.kind": "arm", "hymo.scale": plan.scale}
        tracker = MlflowTracker(None, folder, parent=self.folder, name=arm.label, experiment=run.experiment, tracking=run.tracking, tags=tags)
        tracker.start()
        tracker.text(dump(arm.recipe), "recipe.yaml")
        tracker.text(changes, "difference.md")
        return tracker

    def finish(self, result: Mapping[str, Any], files: Iterable[Path]) -> None:
        """Log what came out, arm by arm, and the report."""
        seeds = len(result["seeds"])
        for row in result["rows"]:
            tracker = self.arms[row["arm"]]
            known = {name: row[key] for name, key in COST.items()} | {f"difference/{name}": row.get(name) for name in DECISION}
            finite = [value for value in row["values"] if value is not None]
            if len(finite) == len(row["values"]):
                known[row["primary"]] = sum(finite) / len(finite)
            tracker.metrics(seeds, {name: value for name, value in known.items() if value is not None})
            tracker.finish("finished", tags={"verdict": row["words"]} if "words" in row else None)
        for path in files:
            self.top.artifact(path)
        verdicts = {f"verdict.{row['arm']}".replace(" × ", "_x_"): row["words"] for row in result["rows"] if "words" in row}
        self.top.finish("finished", tags=verdicts)

    def stop(self) -> None:
        """Close everything after an interruption; the same command goes on with it."""
        for tracker in (*self.arms.values(), self.top):
            tracker.finish("stopped")
