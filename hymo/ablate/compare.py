"""`hymo compare RUN…`: what differs between runs, in recipe and in result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from hymo.ablate.difference import brief, differences
from hymo.errors import HymoError
from hymo.recipe import Recipe, load_recipe
from hymo.runs import read_run
from hymo.units import in_bytes

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
            before, after = _effective(recipes[0], one.setting, one.before), _effective(recipe, one.setting, one.after)
            settings.setdefault(name, [before] * len(recipes))[index] = after
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
        table.add_column(Text(name), justify="right")
    for setting, values in found["recipe"].items():
        table.add_row(Text(setting), *map(Text, values))    # `[layers 3]` is no markup
    if not found["recipe"]:
        table.add_row("recipes", *["equal"] * len(found["runs"]))
    table.add_section()
    for metric, values in found["result"].items():
        table.add_row(metric, *(_result(metric, value) for value in values))
    return table


def _effective(recipe: Recipe, setting: str, value: Any) -> str:
    """What a setting comes to, in few words: a mixer that names no position encoding has the model's."""
    if value is None and setting.endswith(".mixer.rope"):
        return f"{recipe.model.rope.type} (model.rope)"
    return brief(value)


def _result(metric: str, value: float | str | None) -> str:
    """A result for people: counts to the unit, bytes by their unit, anything else to five digits."""
    if value is None or isinstance(value, str):
        return value or "—"
    if "bytes" in metric:
        return in_bytes(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.5g}"
