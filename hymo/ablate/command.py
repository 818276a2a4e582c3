"""`hymo ablate` behind its options: from the words on the command line to the last table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hymo import sizing
from hymo.ablate import price
from hymo.ablate.conduct import Site, conduct, folder_of
from hymo.ablate.definition import Experiment, load
from hymo.ablate.engine import Engine, LocalEngine
from hymo.ablate.plan import Plan, base_recipe, make_plan
from hymo.ablate.store import Store, read_json
from hymo.ablate.table import show_plan, show_result
from hymo.ablate.watch import Watch
from hymo.environment import cores
from hymo.errors import AblationError, did_you_mean
from hymo.units import in_time

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
    plan_at = partial(
        make_plan,
        experiments,
        seeds=options.seeds,
        overrides=overrides,
        only=options.arms,
        again=options.aa,
        cross=options.cross,
        looks=options.looks,
        threads=options.threads,
    )
    scale, per_flop = (options.scale, None) if options.scale else chosen_scale(experiments, overrides, options, plan_at, store, jobs, device, screen)
    plan = plan_at(scale=scale)
    prices = price.price(plan, device, per_flop)
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
    experiments: Sequence[Experiment],
    overrides: Sequence[str],
    options: Options,
    plan_at: Callable[..., Plan],
    store: Store,
    jobs: int,
    device: torch.device,
    screen: Console,
) -> tuple[str, float | None]:
    """The largest scale at which the whole ablation ends in time, said with its reasons, and the seconds that a FLOP took there if it was tried.

    What the machine has time for depends on what else it is doing, but the same command must ask the same question: a larger scale at which this
    ablation was finished before is taken again.
    """
    from hymo.recipe import scales

    name = experiments[0].base
    known = scales(name)
    if not known:
        return "full", None
    arms = options.arms or [arm for experiment in experiments for arm in experiment.definition.arms]
    runs = (1 + options.aa + len(arms)) * options.seeds

    recipes = {scale: base_recipe(experiments, scale, overrides, options.threads) for scale in [*known, "full"]}
    choice = price.choose_scale(str(name), recipes, runs, jobs, options.within, device)
    need = choice.chosen
    larger = [scale for scale, recipe in recipes.items() if sizing.work(recipe) > sizing.work(need.recipe)]
    for scale in sorted(larger, key=lambda scale: -sizing.work(recipes[scale])):
        if (why := finished_before(plan_at, scale, store, jobs, options.within)) is not None:
            screen.print(why, markup=False, soft_wrap=True)
            return scale, None
    for sentence in choice.words:
        screen.print(sentence, markup=False, soft_wrap=True)
    return need.scale, None if need.bound else need.seconds / sizing.work(need.recipe)


def finished_before(plan_at: Callable[..., Plan], scale: str, store: Store, jobs: int, within: float) -> str | None:
    """What to say of a scale at which the same arms have a result in the store and the runs that it lacks end in time, as long as those took; else
    None."""
    if not any(store.root.glob(f"*-{scale}-*/result.json")):
        return None
    plan = plan_at(scale=scale)
    result = read_json(folder_of(plan, store) / "result.json")
    if result is None:
        return None
    took = [outcome.seconds for row in result["rows"] for key in row["keys"] if (outcome := store.outcome(key)) is not None]
    lacks = len(plan.everything) * len(set(plan.seeds) - set(result["seeds"]))
    left = lacks * mean(took) / jobs if took else float("inf")
    if left > within:
        return None
    rest = f", and the {lacks} runs that it lacks take about {in_time(left)}" if lacks else ""
    return f"scale {scale}, as before: the store has a result of these arms there{rest}. --scale takes another."


def engine(on: str, store: Store, jobs: int, device: torch.device) -> Engine:
    """The engine of `--on`."""
    name, _, address = on.partition(":")
    if name == "local" and not address:
        return LocalEngine(store, jobs)
    if name == "ray":
        from hymo.ablate.ray import RayEngine

        return RayEngine(store, jobs, address or None, gpus=1 / jobs if device.type == "cuda" else 0)
    raise AblationError(f"--on must be local, ray or ray:ADDRESS, but got {on!r}{did_you_mean(name, ['local', 'ray'])}")
