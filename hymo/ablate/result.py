"""From outcomes to what an ablation says: one JSON-like tree that the table, the report and `hymo results` all read.

Nothing measured (seconds, tokens/s, memory) enters a verdict, so the same runs give the same verdicts to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hymo.ablate.plan import Arm, Plan
from hymo.ablate.power import alpha_shares
from hymo.ablate.statistics import Best, Judgement, best, interaction, judge, judge_at_looks, noise_floor
from hymo.ablate.store import Outcome, Status
from hymo.ablate.verdict import Verdict
from hymo.cost import Cost
from hymo.errors import did_you_mean

ALPHA = 0.05
Outcomes = Mapping[tuple[str, int], Outcome]


def values(plan: Plan, outcomes: Outcomes, arm: Arm, metric: str) -> np.ndarray[Any, Any]:
    """The metric seed by seed; NaN for a seed without a finite one."""
    found = [outcomes[arm.label, seed].metrics.get(metric, math.nan) if (arm.label, seed) in outcomes else math.nan for seed in plan.seeds]
    return np.array(found, dtype=float)


def differences(plan: Plan, outcomes: Outcomes) -> np.ndarray[Any, Any]:
    """Paired differences of each arm's own primary metric, shape (arms, seeds)."""
    return np.array([values(plan, outcomes, arm, primary(arm)) - values(plan, outcomes, plan.baseline, primary(arm)) for arm in plan.arms])


def primary(arm: Arm) -> str:
    """The metric that decides about this arm."""
    return arm.experiment.definition.primary if arm.experiment else "val/loss"


def _shared_primary(plan: Plan) -> str | None:
    """The metric that decides about every arm, if it is one and the same."""
    found = {primary(arm) for arm in plan.arms}
    return found.pop() if len(found) == 1 else None


def judged(plan: Plan, outcomes: Outcomes, seeds: int | None = None) -> tuple[Judgement, list[str]]:
    """The judgement of the arms after `seeds` seeds (by default all), and the verdict that stands for each."""
    definitions = [arm.experiment.definition for arm in plan.arms if arm.experiment]
    bounds: dict[str, Any] = {
        "delta_min": [one.delta_min for one in definitions],
        "margin": [one.margin for one in definitions],
        "lower_is_better": [one.better == "lower" for one in definitions],
        "lr_unresolved": [arm.lr_unresolved for arm in plan.arms],
    }
    x = differences(plan, outcomes)[:, :seeds]
    if not plan.looks:
        judgement = judge(x, alpha=ALPHA, **bounds)
        return judgement, [str(verdict) for verdict in judgement.verdict]
    reached, standing = judge_at_looks(x, plan.looks, alpha=ALPHA, **bounds)
    return reached[-1], [str(verdict) for verdict in standing]


def summarise(
    plan: Plan, outcomes: Outcomes, measured: Mapping[str, Mapping[str, float]], keys: Mapping[tuple[str, int], str], reused: int
) -> dict[str, Any]:
    """Everything there is to say, as plain values. `keys` names the runs in the store."""
    check_primary(plan, outcomes)
    judgement, standing = judged(plan, outcomes)
    rows = [{**_row(plan, outcomes, arm, measured), "keys": [keys[arm.label, seed] for seed in plan.seeds]} for arm in plan.everything]
    first = len(rows) - len(plan.arms)
    for index, (arm, verdict) in enumerate(zip(plan.arms, standing, strict=True)):
        rows[first + index] |= _decision(judgement, index, verdict, _trouble(plan, outcomes, arm), _trouble(plan, outcomes, plan.baseline))
    return {
        "name": plan.name,
        "scale": plan.scale,
        "seeds": list(plan.seeds),
        "looks": list(plan.looks),
        "alpha": ALPHA,
        "interval": 1 - judgement.alpha,
        "shares": alpha_shares(plan.looks, ALPHA) if plan.looks else [],
        "experiments": [
            {
                "name": experiment.name,
                **experiment.definition.model_dump(include={"hypothesis", "expectation", "primary", "delta_min", "margin", "match", "factor"}),
            }
            for experiment in plan.experiments
        ],
        "primary": _shared_primary(plan),
        "rows": rows,
        "noise_floor": _noise(plan, outcomes),
        "best": _best(plan, outcomes),
        "interactions": _interactions(plan, outcomes),
        "secondary": _secondary(plan, outcomes),
        "left_out": [*plan.left_out, *_not_probed(outcomes)],
        "reused": reused,
        "runs": len(plan.everything) * len(plan.seeds),
    }


def _not_probed(outcomes: Outcomes) -> list[str]:
    """Probes that were planned and could not be made, with the reason that the first run gives."""
    reasons = {name: why for outcome in reversed([*outcomes.values()]) for name, why in outcome.left_out.items()}
    return [f"probe {name}: {why}" for name, why in reasons.items()]


def check_primary(plan: Plan, outcomes: Outcomes) -> None:
    """Raise AblationError when a finished run has no such metric as an experiment's primary."""
    for arm in plan.arms:
        for outcome in outcomes.values():
            if outcome.status == Status.FINISHED and primary(arm) not in outcome.metrics and arm.experiment is not None:
                hint = did_you_mean(primary(arm), outcome.metrics)
                raise arm.experiment.error(f"primary must be a metric of a finished run, but got {primary(arm)!r}{hint}", "primary")


def _row(plan: Plan, outcomes: Outcomes, arm: Arm, measured: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    base, cost = plan.baseline.cost, arm.cost
    metric = primary(arm) if arm.experiment else _shared_primary(plan) or "val/loss"
    own = values(plan, outcomes, arm, metric)
    speed, reference = measured.get(arm.label, {}), measured.get(plan.baseline.label, {})
    rate = speed["tokens_per_s"] / reference["tokens_per_s"] if "tokens_per_s" in speed and "tokens_per_s" in reference else None
    return {
        "arm": arm.label,
        "primary": metric,
        "changes": [str(one) for one in arm.changes],
        "notes": list(arm.notes),
        "active": cost.active,
        "stored": cost.stored,
        "active_change": cost.active / base.active - 1,
        "flops_per_token_train": cost.flops_per_token_train,
        "flops_change": cost.flops_per_token_train / base.flops_per_token_train - 1,
        "state_bytes": decode_bytes(cost),
        "tokens_per_s": speed.get("tokens_per_s"),
        "speed_ratio": rate,
        "bytes_peak": speed.get("bytes_peak"),
        "processor": speed.get("processor"),
        "values": _plain(own),
        "differences": _plain(own - values(plan, outcomes, plan.baseline, metric)),
        "statuses": [outcomes[arm.label, seed].status if (arm.label, seed) in outcomes else "not run" for seed in plan.seeds],
        "curves": [_curve(outcomes, arm.label, seed) for seed in plan.seeds],
        "by_position": _by_position(outcomes, arm.label, plan.seeds),
    }


def decode_bytes(cost: Cost) -> int:
    """Bytes kept per sequence while decoding at the trained length: caches that grow and states that do not."""
    return cost.kv_bytes + cost.state_bytes


def _decision(judgement: Judgement, index: int, standing: str, trouble: str | None, base_trouble: str | None) -> dict[str, Any]:
    verdict = standing
    words = judgement.words(index) if standing == Verdict.INCONCLUSIVE or judgement.verdict[index] == standing else standing
    if base_trouble is not None:
        verdict, words = Verdict.INCONCLUSIVE, f"{Verdict.INCONCLUSIVE}: the baseline {base_trouble}"
    elif trouble is not None:
        diverged = trouble.startswith(Status.DIVERGED)
        verdict, words = (Verdict.UNSTABLE, f"{Verdict.UNSTABLE}: {trouble}") if diverged else (Verdict.INCONCLUSIVE, trouble)
    numbers = {
        name: _number(getattr(judgement, name)[index]) for name in ("mean", "sd", "low", "high", "p", "p_holm", "p_tost", "delta_min", "margin")
    }
    return {**numbers, "detectable": _number(judgement.detectable(index)), "verdict": str(verdict), "words": str(words)}


def _trouble(plan: Plan, outcomes: Outcomes, arm: Arm) -> str | None:
    """What kept the arm's seeds from ending well, in words, the worst first."""
    found = [outcomes[arm.label, seed] for seed in plan.seeds if (arm.label, seed) in outcomes]
    bad = [outcome for outcome in found if outcome.status != Status.FINISHED]
    if not bad:
        return None
    worst = next((outcome for outcome in bad if outcome.status != Status.DIVERGED), bad[0])
    same = sum(outcome.status == worst.status for outcome in bad)
    return f"{worst.status} in {same} of {len(found)} seeds" + (f" ({worst.error})" if worst.error else "")


def _noise(plan: Plan, outcomes: Outcomes) -> dict[str, float | None] | None:
    if plan.again is None:
        return None
    metric = primary(plan.arms[0])
    one, two = values(plan, outcomes, plan.baseline, metric), values(plan, outcomes, plan.again, metric)
    if not np.isfinite(one + two).all():
        return None
    sd, correlation = noise_floor(one, two)
    return {"sd": sd, "correlation": _number(correlation)}


def _best(plan: Plan, outcomes: Outcomes) -> dict[str, Any] | None:
    """The best of baseline and arms against the runner-up; None unless all are compared on one metric."""
    if len({(primary(arm), arm.experiment.definition.better) for arm in plan.arms if arm.experiment}) > 1:
        return None
    assert plan.arms[0].experiment is not None
    sign = 1.0 if plan.arms[0].experiment.definition.better == "lower" else -1.0
    candidates = (plan.baseline, *plan.arms)
    found: Best = best(np.array([sign * values(plan, outcomes, arm, primary(plan.arms[0])) for arm in candidates]), ALPHA)
    return {
        "arm": candidates[int(found.index)].label,
        "runner_up": candidates[int(found.runner_up)].label,
        "difference": _number(sign * float(found.mean)),
        "p": _number(found.p),
        "named": bool(found.named) and not plan.looks,
    }


def _interactions(plan: Plan, outcomes: Outcomes) -> list[dict[str, Any]]:
    """(both − first) − (second − baseline) of every cell of a factorial, Holm over the cells."""
    cells = [arm for arm in plan.arms if arm.factors]
    if not cells:
        return []
    by_label = {arm.label: arm for arm in plan.arms}
    metric = primary(cells[0])
    base = values(plan, outcomes, plan.baseline, metric)
    x = []
    for cell in cells:
        first, second = (values(plan, outcomes, by_label[label], metric) for label in cell.factors)
        x.append(interaction(base, first, second, values(plan, outcomes, cell, metric)))
    assert cells[0].experiment is not None
    definition = cells[0].experiment.definition
    judgement = judge(np.array(x), delta_min=definition.delta_min, margin=definition.margin, alpha=ALPHA)
    words = {Verdict.BETTER: "more than the sum" if definition.better == "lower" else "less than the sum"}
    words[Verdict.WORSE] = "less than the sum" if definition.better == "lower" else "more than the sum"
    words |= {Verdict.EQUIVALENT: "the effects add up", Verdict.NEGLIGIBLE: "the effects nearly add up"}
    return [
        {
            "arm": cell.label,
            **{name: _number(getattr(judgement, name)[i]) for name in ("mean", "low", "high", "p_holm")},
            "words": words.get(Verdict(str(judgement.verdict[i])), judgement.words(i)),
        }
        for i, cell in enumerate(cells)
    ]


def _secondary(plan: Plan, outcomes: Outcomes) -> list[dict[str, Any]]:
    """Every further metric of every arm: difference, interval, and p corrected over all of them. They describe; they decide nothing."""
    named = [metric for experiment in plan.experiments for metric in experiment.definition.secondary]
    probed = [metric for outcome in outcomes.values() for metric in outcome.probed]
    metrics = [metric for metric in dict.fromkeys([*named, *probed]) if metric not in {primary(arm) for arm in plan.arms}]
    pairs = [(arm, metric) for metric in metrics for arm in plan.arms]
    if not pairs:
        return []
    x = np.array([values(plan, outcomes, arm, metric) - values(plan, outcomes, plan.baseline, metric) for arm, metric in pairs])
    known = np.isfinite(x).all(axis=-1)
    if not known.any():
        return []
    judgement = judge(x[known], delta_min=1, margin=1, alpha=ALPHA)
    return [
        {"arm": arm.label, "metric": metric, **{name: _number(getattr(judgement, name)[i]) for name in ("mean", "low", "high", "p_holm")}}
        for i, (arm, metric) in enumerate(pair for pair, there in zip(pairs, known, strict=True) if there)
    ]


def _curve(outcomes: Outcomes, label: str, seed: int) -> list[tuple[int, float]]:
    return outcomes[label, seed].validation if (label, seed) in outcomes else []


def _by_position(outcomes: Outcomes, label: str, seeds: tuple[int, ...]) -> list[tuple[int, float]]:
    """Loss by position, mean over the seeds that have it."""
    found = [outcomes[label, seed].by_position for seed in seeds if (label, seed) in outcomes and outcomes[label, seed].by_position]
    return [(buckets[0][0], float(np.mean([loss for _, loss in buckets]))) for buckets in zip(*found, strict=True)]


def _plain(array: np.ndarray[Any, Any]) -> list[float | None]:
    return [_number(value) for value in array]


def _number(value: Any) -> float | None:
    """A JSON number; None for what JSON has no number for."""
    return float(value) if np.isfinite(value) else None
