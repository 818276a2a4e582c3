"""One ablation from plan to report: what is in the store is reused, the rest is run, arms are measured, and the result is put down."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hymo.ablate.adjust import matched_in_time, needs_speeds, tries, tuned
from hymo.ablate.engine import Engine, collect, new_session
from hymo.ablate.key import ingredients, key
from hymo.ablate.measure import is_known, measured
from hymo.ablate.plan import Arm, Plan
from hymo.ablate.report import write_report
from hymo.ablate.result import Outcomes, check_primary, judged, summarise
from hymo.ablate.store import Outcome, RunSpec, Store, write_json
from hymo.ablate.tracked import Tracked
from hymo.ablate.verdict import Verdict
from hymo.recipe import Recipe, fingerprint, to_dict
from hymo.tracking import address

Specs = dict[tuple[str, int], RunSpec]


@dataclass(frozen=True)
class Site:
    """Where an ablation runs, and who hears of it."""

    store: Store
    engine: Engine
    device: str  # resolved: "cpu", "cuda:0"
    threads: int
    say: Callable[[str], None]
    watch: Callable[[Mapping[str, RunSpec], str], Callable[[], None]]  # (specs by key, session) -> progress, called several times a second


def conduct(plan: Plan, site: Site, *, fresh: bool = False, rates: Sequence[float] = ()) -> dict[str, Any]:
    """Run what is missing and return the result, which also lies in the ablation's folder with its report.

    `rates` are factors of the learning rate that every arm tries first (`--tune lr`); empty: the recipe's own.
    """
    session = new_session()
    if rates:
        plan = tuned(plan, rates, _tried(tries(plan, rates), site, session, fresh))
    if needs_speeds(plan):
        plan = matched_in_time(plan, speeds_of(plan, site, make_specs(plan, site, folder_of(plan, site.store))))
    folder = folder_of(plan, site.store)
    specs = make_specs(plan, site, folder)
    if fresh:
        for spec in specs.values():
            site.store.forget(spec.key)
    reused = sum(site.store.outcome(spec.key) is not None for spec in specs.values())
    if reused:
        site.say(f"{reused} of {len(specs)} runs are in the store already and are reused; --fresh would run them again")
    tracked = Tracked(plan, folder, {arm.label: arm_folder(folder, arm) for arm in plan.everything}) if reused < len(specs) else None
    try:
        ran, outcomes = run_all(plan, specs, site, session)
        keys = {at: spec.key for at, spec in specs.items()}
        result = summarise(ran, outcomes, speeds_of(ran, site, specs), keys, reused)
        files = [folder / "result.json", folder / "report.html"]
        write_json(files[0], result)
        write_report(files[1], result, site.store)
        if tracked is not None:
            tracked.finish(result, files)
    except BaseException:
        if tracked is not None:
            tracked.stop()
        raise
    return {**result, "folder": str(folder)}


def run_all(plan: Plan, specs: Specs, site: Site, session: str) -> tuple[Plan, Outcomes]:
    """Bring every run to its outcome; with looks, stop at the first one that decides every arm. Returns the plan with the seeds that were run."""
    stages = plan.looks or (len(plan.seeds),)
    for stage in stages:
        now = replace(plan, seeds=plan.seeds[:stage])
        outcomes = compute({at: spec for at, spec in specs.items() if at[1] in now.seeds}, site, session)
        check_primary(now, outcomes)
        if stage == stages[-1]:
            break
        _, standing = judged(now, outcomes)
        open_arms = [arm.label for arm, verdict in zip(plan.arms, standing, strict=True) if verdict == Verdict.INCONCLUSIVE]
        if not open_arms:
            break
        site.say(f"not decided after {stage} seeds: {', '.join(open_arms)}; on to {stages[stages.index(stage) + 1]}")
    return now, outcomes


def compute(specs: Specs, site: Site, session: str) -> dict[tuple[str, int], Outcome]:
    """The outcome of every run, from the store or from the engine."""
    by_key = {spec.key: spec for spec in specs.values()}
    site.engine(list(by_key.values()), session, site.watch(by_key, session))
    found = collect(site.store, list(by_key.values()), session)
    return {at: found[spec.key] for at, spec in specs.items()}


def speeds_of(plan: Plan, site: Site, specs: Specs) -> dict[str, dict[str, float]]:
    """Tokens per second and peak memory of every arm, each measured alone or known already."""
    of_arms = {arm.label: specs[arm.label, plan.seeds[0]] for arm in plan.everything}
    unknown = sum(not is_known(site.store, spec.key) for spec in of_arms.values())
    if unknown:
        site.say(f"speed and memory of {unknown} arm{'s' if unknown > 1 else ''}, each alone on the device; then the report")
    return {label: measured(site.store, spec) for label, spec in of_arms.items()}


def _tried(plan: Plan, site: Site, session: str, fresh: bool) -> Outcomes:
    """The outcomes of the tries of learning rates."""
    specs = make_specs(plan, site, folder_of(plan, site.store))
    for spec in specs.values() if fresh else ():
        site.store.forget(spec.key)
    site.say(f"learning rates: {len(specs)} tries on seed {plan.seeds[0]}, which no verdict sees")
    return compute(specs, site, session)


def make_specs(plan: Plan, site: Site, folder: Path) -> Specs:
    """Every run by (arm, seed), a seed's runs together, so that an ablation cut short has whole seeds."""
    from hymo.data import open_data

    known: dict[str, str] = {}

    def data_fingerprint(recipe: Recipe) -> str:
        read = repr((recipe.data, recipe.model.vocab_size))
        if read not in known:
            known[read] = open_data(recipe).fingerprint
        return known[read]

    specs: Specs = {}
    for seed in plan.seeds:
        for arm in plan.everything:
            recipe = as_run(arm.recipe, seed)
            parts = ingredients(recipe, seed + arm.salt, data_fingerprint(recipe), site.device, site.threads, plan.probes)
            specs[arm.label, seed] = RunSpec(
                key=key(parts),
                name=f"{arm.label} seed {seed}",
                recipe=to_dict(recipe),
                init_seed=seed + arm.salt,
                threads=site.threads,
                above=str(arm_folder(folder, arm)),
                probes=plan.probes,
                ingredients=parts,
            )
    return specs


def as_run(recipe: Recipe, seed: int) -> Recipe:
    """The recipe as one run of it, which may take place in any folder on any host."""
    return recipe.model_copy(update={"run": recipe.run.model_copy(update={"seed": seed, "tracking": address(recipe.run.tracking)})})


def folder_of(plan: Plan, store: Store) -> Path:
    """What belongs to the same arms at the same scale has one folder in the store, whatever the number of seeds."""
    identity = "\n".join(f"{arm.label} {fingerprint(arm.recipe)} {arm.salt}" for arm in plan.everything)
    return store.root / f"{plan.name[:80]}-{plan.scale}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def arm_folder(folder: Path, arm: Arm) -> Path:
    """Where the arm's own entry in the tracker's tree is kept."""
    return folder / "arms" / arm.label.replace("/", "+").replace(" ", "")
