"""The watch against the rule written out in float64, and what a spike does in a run under each policy."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hymo.data import Data
from hymo.model import HyMo, Losses
from hymo.recipe import Recipe
from hymo.train import StepInfo, train
from hymo.train.spike import SpikeWatch

Tiny = Callable[..., Recipe]
CPU = torch.device("cpu")
WATCH = ("train.spike_sigma=6", "train.spike_window=4", "train.steps=9", "run.checkpoint_every=3", "eval.every=9")


def by_hand(losses: list[float], sigma: float, window: int) -> list[int]:
    """Places of the spikes."""
    good: list[float] = []
    found = []
    for place, loss in enumerate(losses):
        recent = good[-window:]
        if 2 * len(recent) >= window and loss - statistics.mean(recent) > sigma * statistics.stdev(recent):
            found.append(place)
        else:
            good.append(loss)
    return found


def watched(watch: SpikeWatch, losses: list[float]) -> list[int]:
    found = []
    for place, loss in enumerate(losses):
        value = torch.tensor(loss, dtype=torch.float64)
        spike = watch(value)
        watch.remember(value, spike | ~value.isfinite())
        found += [place] if bool(spike) else []
    return found


def falling(seed: int, steps: int = 200) -> list[float]:
    """A loss curve with noise and now and then a leap."""
    draw = torch.Generator().manual_seed(seed)
    noise, leap = torch.randn(steps, generator=draw) * 0.05, torch.rand(steps, generator=draw)
    return [6 * (1 + t) ** -0.3 + float(noise[t]) + (float(leap[t]) if leap[t] > 0.95 else 0.0) for t in range(steps)]


@pytest.mark.parametrize("seed", range(5))
def test_spikes_are_those_of_the_rule(seed: int) -> None:
    losses = falling(seed)
    found = watched(SpikeWatch(4.0, 16, CPU), losses)
    assert found == by_hand(losses, 4.0, 16)
    assert found, "a curve without a spike shows nothing"


def test_nothing_is_a_spike_before_half_the_window_is_known() -> None:
    assert watched(SpikeWatch(1.0, 8, CPU), [1.0, 1.1, 1.0, 99.0]) == []
    assert watched(SpikeWatch(1.0, 8, CPU), [1.0, 1.1, 1.0, 1.1, 99.0]) == [4]


def test_a_loss_that_is_not_finite_is_no_spike_and_stays_out_of_the_window() -> None:
    nan, inf = float("nan"), float("inf")
    assert watched(SpikeWatch(6.0, 4, CPU), [1.0, 1.1, nan, inf, 1.0, 9.0]) == [5]


def test_a_refilled_watch_goes_on_bit_for_bit() -> None:
    losses = falling(1)
    whole, resumed = SpikeWatch(4.0, 16, CPU), SpikeWatch(4.0, 16, CPU)
    bad = watched(whole, losses[:120])
    resumed.refill([loss for place, loss in enumerate(losses[:120]) if place not in bad])
    assert torch.equal(whole.recent, resumed.recent)
    resumed.refill([])
    assert bool(resumed.recent.isnan().all())


def leap(monkeypatch: pytest.MonkeyPatch, tokens: torch.Tensor) -> None:
    """Make the loss of one batch, known by its tokens, ten times what it is."""
    loss = HyMo.loss

    def leaping(self: HyMo, batch, **kwargs) -> Losses:  # type: ignore[no-untyped-def]
        found = loss(self, batch, **kwargs)
        if self.training and torch.equal(batch.tokens, tokens):
            found.main_sum = found.main_sum * 10
        return found

    monkeypatch.setattr(HyMo, "loss", leaping)


def batches(data: Data, count: int) -> list[torch.Tensor]:
    loader = data.train()
    return [loader.take(4).tokens for _ in range(count)]


def test_a_spike_stops_the_run_by_default(tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leap(monkeypatch, batches(opened, 6)[5])
    result = train(tiny(*WATCH), run_dir=tmp_path, data=opened)
    assert (result.status, result.step, result.bad_steps) == ("diverged", 5, [6])
    assert "the loss of step 6, " in result.message
    assert "is a spike of more than train.spike_sigma=6 standard deviations (train.on_bad_loss=stop)" in result.message


def test_without_a_watch_it_goes_on(tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leap(monkeypatch, batches(opened, 6)[5])
    assert train(tiny("train.steps=9"), run_dir=tmp_path, data=opened).status == "finished"


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_a_spike_is_left_out_counted_and_remembered_across_a_stop(
    tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    leap(monkeypatch, batches(opened, 6)[5])
    recipe = tiny(*WATCH, f"train.on_bad_loss={policy}")
    last: dict[int, StepInfo] = {}
    whole = train(recipe, run_dir=tmp_path / "whole", data=opened, on_step=lambda info: last.__setitem__(info.step, info))
    assert (whole.status, whole.bad_steps, len(whole.losses)) == ("finished", [6], 9)
    assert last[9].metrics["progress/bad_steps"] == 1
    assert last[9].metrics.get("progress/rollbacks", 0) == (policy == "rollback")
    assert (max(whole.losses) > 20) == (policy == "skip")       # the loss of a skipped batch stays on record
    state = json.loads((tmp_path / "whole/checkpoints/step-0000000009/state.json").read_text())
    assert state["position"]["batches"] == (9 if policy == "skip" else 10)

    for stop in (7, 99):
        rest = train(recipe, run_dir=tmp_path / "cut", data=opened, resume=stop == 99,
                     on_step=lambda info: last.__setitem__(0, info), should_stop=lambda stop=stop: last[0].step >= stop if 0 in last else False)
    assert (rest.losses, rest.bad_steps) == (whole.losses, whole.bad_steps)
