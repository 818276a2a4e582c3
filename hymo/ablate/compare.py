"""`hymo compare RUN…`: what differs between runs, in recipe and in result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from hymo.ablate.difference import brief, differences
from hymo.errors import HymoError
from hymo.recipe import load_recipe
from hymo.runs import read_run

RESULTS = ("val/loss", "val/bpb", "loss/main", "speed/tokens_per_s", "memory/bytes_peak", "cost/params_active", "cost/flops_per_token_train")


def compare(folders: Sequence[Path], allow_code: bool = False) -> dict[str, Any]:
    """{"runs", "recipe": {setting: one value a run}, "result": {metric: one value a run}}; the first run is what the others are held against."""
    if len(folders) < 2:
        raise HymoError(f"a comparison must have two runs at least, but got {len(folders)}; `hymo runs` lists them")
    recipes = [load_recipe(folder / "recipe.yaml", allow_code=allow_code) for folder in folders]
    runs = [read_run(folder) for folder in folders]
    settings: dict[str, list[Any]] = {}
    for index, recipe in enumerate(recipes):
        for one in differences(recipes[0], recipe):
            name = one.setting + (f" [layers {', '.join(map(str, one.layers))}]" if one.layers else "")
            settings.setdefault(name, [brief(one.before)] * len(recipes))[index] = brief(one.after)
    if len({recipe.run.seed for recipe in recipes}) > 1:
        settings["run.seed"] = [str(recipe.run.seed) for recipe in recipes]
    result: dict[str, list[Any]] = {"status": [run.status for run in runs], "step": [run.step for run in runs]}
    result |= {name: [run.metrics.get(name) for run in runs] for name in RESULTS if any(name in run.metrics for run in runs)}
    return {"runs": [run.name for run in runs], "recipe": settings, "result": result}


def comparison_table(found: dict[str, Any]) -> Table:
    """The comparison, a column a run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in found["runs"]:
        table.add_column(name, justify="right")
    for setting, values in found["recipe"].items():
        table.add_row(setting, *values)
    if not found["recipe"]:
        table.add_row("recipes", *["equal"] * len(found["runs"]))
    table.add_section()
    for metric, values in found["result"].items():
        table.add_row(
            metric,
            *(
                "—" if value is None else f"{value:.5g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
                for value in values
            ),
        )
    return table
