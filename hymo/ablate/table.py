"""The plan and the result as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hymo.ablate.measure import ALONE
from hymo.ablate.verdict import Verdict
from hymo.units import in_bytes, in_time, si

if TYPE_CHECKING:
    from hymo.ablate.plan import Arm, Plan
    from hymo.ablate.price import Price

STYLES = {
    Verdict.BETTER: "bold green",
    Verdict.WORSE: "bold red",
    Verdict.EQUIVALENT: "cyan",
    Verdict.NEGLIGIBLE: "cyan",
    Verdict.UNSTABLE: "bold magenta",
    Verdict.LR_UNRESOLVED: "yellow",
    Verdict.INCONCLUSIVE: "yellow",
}


def show_plan(console: Console, plan: Plan, prices: Mapping[str, Price], total: Price, jobs: int) -> None:
    """What will run: every arm with its resolved difference, what was solved for it, and its price."""
    for experiment in plan.experiments:
        definition = experiment.definition
        console.print(Text(f"{experiment.name}: {definition.hypothesis}", style="bold"))
        held = definition.match.by if definition.match.by == "none" else f"{definition.match.by} within {definition.match.tolerance:.1%}"
        console.print(
            f"  decides {definition.primary}, by {definition.delta_min:g} at least; equal within ±{definition.margin:g}; matched: {held}",
            markup=False,
        )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("arm", no_wrap=True)
    table.add_column("what differs", ratio=1)
    for name in ("active", "FLOPs/token", "memory", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in plan.everything:
        price = prices[arm.label]
        table.add_row(
            arm.label, _differs(arm), si(arm.cost.active), si(arm.cost.flops_per_token_train), in_bytes(price.bytes), in_time(price.seconds)
        )
    console.print(table)
    if plan.probes:
        console.print(f"probes of every arm: {', '.join(plan.probes)}", markup=False)
    for why in plan.left_out:
        console.print(f"left out: {why}", markup=False)
    runs, threads = len(plan.everything) * len(plan.seeds), plan.baseline.recipe.train.threads
    console.print(
        f"{runs} runs ({len(plan.everything)} × {len(plan.seeds)} seeds) at scale {plan.scale}, {jobs} at a time on {threads} CPU thread(s) each: "
        f"about {in_time(total.seconds)}, {in_bytes(total.disk)} of disk",
        markup=False,
    )


def _differs(arm: Arm) -> Text:
    lines = Text("\n").join([Text(str(one)) for one in arm.changes] + [Text(note, style="yellow") for note in arm.notes])
    return lines or Text("same recipe, other initial weights" if arm.salt else "", style="dim")


def result_table(result: Mapping[str, Any]) -> RenderableType:
    """The table that the command ends with. Under an arm's difference stands every seed's."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("arm", no_wrap=True)
    for name in ("Δ active", "Δ FLOPs", "state", "speed", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"Δ {decides(result)} [{result['interval'] * 100:.3g} % interval], seeds", no_wrap=True)
    table.add_column("verdict")
    for row in result["rows"]:
        first = row is result["rows"][0]
        seeds = Text(" ".join(seed_values(result, row)), style="dim")
        table.add_row(
            row["arm"],
            "" if first else _change(row["active_change"]),
            "" if first else _change(row["flops_change"]),
            in_bytes(row["state_bytes"]),
            "" if row["speed_ratio"] is None else f"{row['speed_ratio']:.2f}×",
            "" if row["bytes_peak"] is None else in_bytes(row["bytes_peak"]),
            seeds if first else Text("\n").join([Text(difference(row)), seeds]),
            Text(row["words"], style=STYLES[Verdict(row["verdict"])]) if "words" in row else "",
        )
    return table


def show_result(console: Console, result: Mapping[str, Any]) -> None:
    """Table, and below it the sentences that a reader needs to judge it."""
    console.print(Group(result_table(result), Text("\n".join(sentences(result)), style="dim")))


def seed_values(result: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Every seed shown: the baseline's own values, an arm's differences from them; a status where there is no number."""
    baseline = row is result["rows"][0]
    return [
        ("✗" if status != "finished" else "—") if value is None else f"{value:.4f}" if baseline else f"{value:+.4f}"
        for value, status in zip(row["values" if baseline else "differences"], row["statuses"], strict=True)
    ]


def decides(result: Mapping[str, Any]) -> str:
    """The metric that the differences are of, in short."""
    metric = result["primary"]
    return "of each arm's own metric" if metric is None else "loss" if metric == "val/loss" else str(metric)


def difference(row: Mapping[str, Any]) -> str:
    """Mean difference and its interval."""
    if row.get("mean") is None:
        return ""
    if row.get("low") is None:
        return f"{row['mean']:+.4f}"
    return f"{row['mean']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"


def sentences(result: Mapping[str, Any]) -> list[str]:
    """What the table cannot say."""
    arms = [row for row in result["rows"] if "words" in row]
    said = [
        f"{len(result['seeds'])} seeds ({', '.join(map(str, result['seeds']))}), paired; an interval is its arm's own, a verdict stands under "
        f"Holm over {len(arms)} arm{'s' if len(arms) > 1 else ''}."
    ]
    said += [f"{row['arm']}: {note}" for row in result["rows"] for note in row["notes"]]
    said += [f"left out: {why}" for why in result["left_out"]]
    known = [row for row in arms if row["detectable"] is not None and row["sd"]]
    if known:
        worst = max(known, key=lambda row: row["detectable"])
        said.append(
            f"With these seeds a difference of {worst['detectable']:.4f} ({worst['arm']}, the noisiest) is found 8 times in 10, Holm included."
        )
    if result["noise_floor"]:
        floor = result["noise_floor"]
        correlation = "unknown" if floor["correlation"] is None else f"{floor['correlation']:.2f}"
        said.append(
            f"A/A: the same recipe with other initial weights differs by {floor['sd']:.4f} (sd of the pair), correlation over seeds {correlation}."
        )
    if result["best"]:
        best = result["best"]
        if best["named"]:
            said.append(f"Best: {best['arm']}, ahead of {best['runner_up']} by {abs(best['difference']):.4f} (p = {best['p']:.3g}).")
        else:
            said.append(f"No best: {best['arm']} is ahead of {best['runner_up']}, and the seeds do not tell them apart.")
    said += [
        f"Interaction {cell['arm']}: {cell['mean']:+.4f} [{cell['low']:+.4f}, {cell['high']:+.4f}]: {cell['words']}."
        for cell in result["interactions"]
        if cell["mean"] is not None
    ]
    if result["looks"]:
        shares = ", ".join(f"{share:.3g} at {look}" for look, share in zip(result["looks"], result["shares"], strict=True))
        said.append(f"Looks fixed in advance; share of α: {shares}.")
    least = min((row["processor"] for row in result["rows"] if row.get("processor") is not None), default=1.0)
    if least < ALONE:
        said.append(
            f"Speeds are not to be trusted: other programs held the processor while they were measured, which got {least:.0%} of its time; "
            "the same command measures them again."
        )
    if any(" more seed" in row["words"] for row in arms):
        said.append(
            f"Seeds still needed are an estimate from these {len(result['seeds'])}: `--scale {result['scale']} --seeds N`, N in all, adds some "
            "and reuses these runs."
        )
    if result["reused"]:
        said.append(f"{result['reused']} of {result['runs']} runs were reused.")
    return said


def _change(value: float) -> str:
    return "=" if abs(value) < 5e-5 else f"{value:+.2%}"
