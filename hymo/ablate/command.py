"""`hymo ablate` and `hymo results` behind their options: from the words on the command line to the last table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hymo.ablate import price
from hymo.ablate.conduct import Site, conduct
from hymo.ablate.definition import Experiment, load
from hymo.ablate.engine import Engine, LocalEngine
from hymo.ablate.plan import base_recipe, make_plan
from hymo.ablate.report import write_report
from hymo.ablate.store import Store, read_json
from hymo.ablate.table import show_plan, show_result
from hymo.ablate.watch import Watch
from hymo.environment import cores
from hymo.errors import AblationError, did_you_mean

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Options:
    """What the command line says (hymo/cli/ablate.py)."""

    words: list[str]
    scale: str | None
    seeds: int
    arms: list[str]
    within: float
    jobs: int | None
    threads: int
    on: str
    dry_run: bool
    fresh: bool
    aa: bool
    cross: bool
    looks: list[int]
    rates: tuple[float, ...]
    store: Path


def run(options: Options, screen: Console) -> dict[str, Any] | None:
    """Plan, say what will happen, do it, show what came out; the result, or None for a dry run."""
    import torch

    from hymo.train.parallel import find_device

    experiments, overrides = split(options.words)
    device = find_device(base_recipe(experiments, None, overrides).train.device)
    torch.set_num_threads(options.threads)
    jobs = options.jobs or (max(1, cores() // options.threads) if device.type == "cpu" else 1)
    store = Store(options.store)
    run_on = engine(options.on, store, jobs, device)
    scale = options.scale or chosen_scale(experiments, overrides, options, jobs, device, screen)
    plan = make_plan(
        experiments,
        scale=scale,
        seeds=options.seeds,
        overrides=overrides,
        only=options.arms,
        again=options.aa,
        cross=options.cross,
        looks=options.looks,
        threads=options.threads,
    )
    prices = price.price(plan, device)
    whole = price.total(plan, prices, jobs, tries=len(options.rates))
    show_plan(screen, plan, prices, whole, jobs)
    if options.dry_run:
        return None
    price.check_memory(whole, device, jobs)
    with Watch(screen, store) as watch:
        site = Site(store, run_on, str(device), options.threads, watch.say, watch)
        result = conduct(plan, site, fresh=options.fresh, rates=options.rates)
    show_result(screen, result)
    screen.print(f"report: {result['folder']}/report.html", markup=False, soft_wrap=True)
    return result


def split(words: Sequence[str]) -> tuple[list[Experiment], list[str]]:
    """Experiments, and the overrides of their base."""
    overrides = [word for word in words if "=" in word and not Path(word).exists()]
    names = [word for word in words if word not in overrides]
    if not names:
        raise AblationError(f"an ablation must name an experiment, but got only {' '.join(words)!r}")
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled:
        raise AblationError(f"an experiment must be named once, but got {doubled!r} twice")
    return [load(name) for name in names], overrides


def chosen_scale(
    experiments: Sequence[Experiment], overrides: Sequence[str], options: Options, jobs: int, device: torch.device, screen: Console
) -> str:
    """The largest scale at which the whole ablation ends in time, said with its reasons."""
    from hymo.recipe import scales

    name = experiments[0].base
    known = scales(name)
    if not known:
        return "full"
    arms = options.arms or [arm for experiment in experiments for arm in experiment.definition.arms]
    runs = (1 + options.aa + len(arms)) * options.seeds

    recipes = {scale: base_recipe(experiments, scale, overrides, options.threads) for scale in [*known, "full"]}
    scale, words = price.choose_scale(str(name), recipes, runs, jobs, options.within, device)
    for sentence in words:
        screen.print(sentence, markup=False, soft_wrap=True)
    return scale


def engine(on: str, store: Store, jobs: int, device: torch.device) -> Engine:
    """The engine of `--on`."""
    name, _, address = on.partition(":")
    if name == "local" and not address:
        return LocalEngine(store, jobs)
    if name == "ray":
        from hymo.ablate.ray import RayEngine

        return RayEngine(store, jobs, address or None, gpus=1 / jobs if device.type == "cuda" else 0)
    raise AblationError(f"--on must be local, ray or ray:ADDRESS, but got {on!r}{did_you_mean(name, ['local', 'ray'])}")


def results(name: str | None, report: bool, folder: Path, screen: Console) -> Any:
    """List finished ablations, or show one of them; what was shown, as plain values."""
    store = Store(folder)
    found = {path.parent.name: read_json(path) for path in sorted(store.root.glob("*/result.json"), key=os.path.getmtime)}
    if name is None:
        if report:
            raise AblationError("--report needs the name of an experiment, but got none; `hymo results` lists them")
        show_list(found, store, screen)
        return [{"folder": key, **summary(value)} for key, value in found.items()]
    chosen = pick(name, found, store)
    if report:
        write_report(store.root / chosen / "report.html", found[chosen], store)
    show_result(screen, found[chosen])
    screen.print(f"report: {store.root / chosen / 'report.html'}", markup=False, soft_wrap=True)
    return found[chosen]


def show_list(found: dict[str, Any], store: Store, screen: Console) -> None:
    """Every finished ablation with its verdicts."""
    if not found:
        screen.print(f"no finished ablation in {store.root}; `hymo ablate nope_hybrid` makes one", markup=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("ablation", "scale", "seeds", "verdicts"):
        table.add_column(column)
    for value in found.values():
        line = summary(value)
        table.add_row(line["name"], line["scale"], str(line["seeds"]), "\n".join(f"{arm}: {words}" for arm, words in line["verdicts"].items()))
    screen.print(table)


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    verdicts = {row["arm"]: row["words"] for row in result["rows"] if "words" in row}
    return {"name": result["name"], "scale": result["scale"], "seeds": len(result["seeds"]), "verdicts": verdicts}


def pick(name: str, found: dict[str, Any], store: Store) -> str:
    """The folder of the newest finished ablation of this name. Raises AblationError for one that is unknown or unfinished."""
    fitting = [key for key, value in found.items() if name in (key, value["name"], *(one["name"] for one in value["experiments"]))]
    if fitting:
        return fitting[-1]
    begun = [path.name for path in store.root.glob(f"{name}-*") if path.is_dir()]
    if begun:
        raise AblationError(f"an ablation must be finished to be reported, but got {begun[0]!r}, which is not; `hymo ablate {name}` goes on with it")
    raise AblationError(
        f"an ablation must be one that has been run, but got {name!r}{did_you_mean(name, [value['name'] for value in found.values()])}"
    )
