import dataclasses
import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hymo.data import Data
from hymo.errors import BudgetError, CheckpointError
from hymo.model import HyMo, Losses
from hymo.recipe import Recipe
from hymo.train import RunStart, StepInfo, TrainResult, train

Tiny = Callable[..., Recipe]


class Recorder:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.started: list[RunStart] = []
        self.steps: dict[int, dict[str, float]] = {}
        self.measured: dict[int, dict[str, list[float]]] = {}
        self.finished: list[str] = []

    def start(self, info: RunStart) -> None:
        self.started.append(info)

    def metrics(self, step: int, values: dict[str, float]) -> None:
        known = self.steps.setdefault(step, {})
        assert not known.keys() & values.keys(), "a metric was logged twice"
        known.update(values)

    def vectors(self, step: int, values: dict[str, list[float]]) -> None:
        assert step not in self.measured, "a validation was logged twice"
        self.measured[step] = values

    def artifact(self, path: Path, folder: str = "") -> None: ...

    def text(self, text: str, name: str) -> None: ...

    def finish(self, status: str) -> None:
        self.finished.append(status)


def stop_after(step: int) -> dict[str, Callable[..., object]]:
    """Arguments of train() that stop it after `step`."""
    seen: list[int] = []
    return {"on_step": lambda info: seen.append(info.step), "should_stop": lambda: bool(seen) and seen[-1] >= step}


def tensors(run_dir: Path, step: int) -> dict[str, torch.Tensor]:
    """Weights, buffers, moments of a checkpoint."""
    folder = run_dir / "checkpoints" / f"step-{step:010d}"
    return {**load_file(folder / "model/model.safetensors"), **load_file(folder / "optimizer/optimizer.safetensors")}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def poison(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[int, torch.Tensor], bool]) -> None:
    """Make the loss of some training passes not finite: is_bad(number of the pass, its tokens)."""
    loss, calls = HyMo.loss, 0

    def poisoned(self: HyMo, batch, **kwargs) -> Losses:  # type: ignore[no-untyped-def]
        nonlocal calls
        found = loss(self, batch, **kwargs)
        if self.training:
            calls += 1
            if is_bad(calls, batch.tokens):
                found.main_sum = found.main_sum * math.inf
        return found

    monkeypatch.setattr(HyMo, "loss", poisoned)


def test_a_run_from_end_to_end(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    recorder, seen = Recorder(), list[StepInfo]()
    result = train(tiny("train.steps=12", "eval.every=6"), run_dir=tmp_path, tracker=recorder, data=opened, on_step=seen.append)
    assert result.status == "finished"
    assert [info.step for info in seen] == list(range(1, 13)) == sorted(recorder.steps)
    assert [step for step, _, _ in result.validation] == [6, 12]
    assert result.validation[-1][1] < result.validation[0][1] < result.losses[0]
    assert result.losses == [info.loss for info in seen] == [recorder.steps[s]["loss/main"] for s in range(1, 13)]
    assert recorder.finished == ["finished"]
    (info,) = recorder.started
    assert (info.step, info.steps, info.facts["dtype"], info.facts["newton_schulz"], info.facts["device"]) == (0, 12, "float32", "float32", "cpu")
    assert {
        "loss/main", "loss/mtp_1", "loss/mtp_2", "loss/total", "grad_norm", "lr/normuon", "lr/adamw", "speed/tokens_per_s",
        "moe/drop_frac", "moe/max_vio", "memory/bytes_peak", "progress/tokens",
    } <= recorder.steps[12].keys()
    assert "speed/mfu" not in recorder.steps[12], "a CPU has no datasheet peak here"
    assert {"val/loss", "val/bpb"} <= recorder.steps[6].keys()
    last = recorder.steps[12]
    assert last["loss/total"] == pytest.approx(last["loss/main"] + 0.3 * last["loss/mtp_1"] + 0.1 * last["loss/mtp_2"], rel=1e-6)
    assert last["progress/tokens"] == 12 * 128
    assert recorder.steps[6]["lr/normuon"] == 2e-3      # the plateau


def test_stopped_and_resumed_is_the_uninterrupted_run_bit_for_bit(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    recipe = tiny()
    whole = train(recipe, run_dir=tmp_path / "whole", data=opened)
    half = train(recipe, run_dir=tmp_path / "cut", data=opened, **stop_after(3))  # type: ignore[arg-type]
    assert (half.status, half.step) == ("stopped", 3)
    torch.manual_seed(1234)
    recorder = Recorder()
    rest = train(recipe, run_dir=tmp_path / "cut", data=opened, resume=True, tracker=recorder)
    assert recorder.started[0].step == 3
    assert sorted(recorder.steps) == [4, 5, 6]
    assert (rest.status, rest.losses, rest.validation) == ("finished", whole.losses, whole.validation)
    assert same(tensors(tmp_path / "whole", 6), tensors(tmp_path / "cut", 6))


@pytest.mark.parametrize("moment", [1, 3, 5])
def test_killed_and_resumed_is_the_uninterrupted_run_bit_for_bit(tiny: Tiny, opened: Data, tmp_path: Path, moment: int) -> None:
    class Killed(BaseException):
        pass

    def kill(info: StepInfo) -> None:
        if info.step == moment:
            raise Killed

    recipe, recorder = tiny(), Recorder()
    whole = train(recipe, run_dir=tmp_path / "whole", data=opened)
    with pytest.raises(Killed):
        train(recipe, run_dir=tmp_path / "cut", data=opened, on_step=kill, tracker=recorder)
    assert recorder.finished == ["failed"]
    rest = train(recipe, run_dir=tmp_path / "cut", data=opened, resume=True)
    assert (rest.losses, rest.validation) == (whole.losses, whole.validation)
    assert same(tensors(tmp_path / "whole", 6), tensors(tmp_path / "cut", 6))


def test_sigterm_saves_and_stops(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    result = train(tiny(), run_dir=tmp_path, data=opened, on_step=lambda info: os.kill(os.getpid(), signal.SIGTERM) if info.step == 2 else None)
    assert (result.status, result.step) == ("stopped", 2)
    assert "step 2 of 6" in result.message
    assert (tmp_path / "checkpoints/step-0000000002/manifest.json").is_file()
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_micro_batch_does_not_change_the_run(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    """Rows hold different numbers of labels (documents end in them), so that a mean of means would differ."""
    results = [train(tiny(f"train.micro_batch={size}"), run_dir=tmp_path / str(size), data=opened) for size in (4, 2, 1)]
    for other in results[1:]:
        assert other.losses == pytest.approx(results[0].losses, rel=2e-6)


def test_bf16_computes_in_bf16_and_keeps_fp32_masters(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    exact, rounded = (train(tiny(f"train.dtype={t}"), run_dir=tmp_path / t, data=opened).losses for t in ("fp32", "bf16"))
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=2e-2)
    assert {t.dtype for name, t in tensors(tmp_path / "bf16", 6).items() if t.is_floating_point()} == {torch.float32}


def test_a_bad_step_stops_the_run_and_moves_nothing(tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, lambda call, _: call == 3)
    recorder = Recorder()
    result = train(tiny(), run_dir=tmp_path, data=opened, tracker=recorder)
    assert (result.status, result.step, result.bad_steps) == ("diverged", 2, [3])
    assert "step 3 is not finite" in result.message
    assert recorder.finished == ["diverged"]
    assert [p.name for p in sorted((tmp_path / "checkpoints").iterdir())] == ["step-0000000002"]


def test_a_bad_step_is_skipped_as_if_it_had_not_been(tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, lambda call, _: call == 3)
    recorder = Recorder()
    result = train(tiny("train.on_bad_loss=skip", "run.checkpoint_every=1", "run.keep_last=9"), run_dir=tmp_path, data=opened, tracker=recorder)
    assert (result.status, result.bad_steps) == ("finished", [3])
    assert math.isinf(result.losses[2])
    assert recorder.steps[3]["progress/bad_steps"] == 1
    assert same(tensors(tmp_path, 2), tensors(tmp_path, 3))
    assert not same(tensors(tmp_path, 3), tensors(tmp_path, 4))


def test_a_run_that_skips_on_and_on_has_diverged(tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, lambda call, _: call > 2)
    result = train(tiny("train.on_bad_loss=skip", "train.steps=20"), run_dir=tmp_path, data=opened)
    assert (result.status, result.bad_steps) == ("diverged", list(range(3, 13)))


def test_a_bad_batch_is_left_out_after_a_rollback(tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny("train.on_bad_loss=rollback")
    loader = opened.train()
    batches = [loader.take(4).tokens for _ in range(8)]
    poison(monkeypatch, lambda _, tokens: torch.equal(tokens, batches[3]))
    recorder = Recorder()
    result = train(recipe, run_dir=tmp_path, data=opened, tracker=recorder)
    assert (result.status, result.bad_steps) == ("finished", [4])
    assert len(result.losses) == 6
    assert all(map(math.isfinite, result.losses))
    state = json.loads((tmp_path / "checkpoints/step-0000000006/state.json").read_text())
    assert state["progress"]["skip"] == [3]
    assert state["progress"]["rollbacks"] == [2]
    assert state["position"]["batches"] == 7        # six steps, one batch left out
    assert recorder.steps[4]["progress/rollbacks"] == 1
    assert recorder.steps[4]["loss/main"] == result.losses[3]


def test_a_rollback_that_never_helps_has_diverged(tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, lambda *_: True)
    assert train(tiny("train.on_bad_loss=rollback"), run_dir=tmp_path, data=opened).status == "diverged"


def test_the_checkpoint_of_another_recipe_is_refused_with_the_difference(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    train(tiny(), run_dir=tmp_path, data=opened, **stop_after(1))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"got optimizer\.adamw\.lr=0\.5 where it was 0\.001; undo the change"):
        train(tiny("optimizer.adamw.lr=0.5"), run_dir=tmp_path, data=opened, resume=True)
    other = dataclasses.replace(opened, fingerprint="0123456789abcdef")
    with pytest.raises(CheckpointError, match=rf"fingerprint {opened.fingerprint}, but got 0123456789abcdef"):
        train(tiny(), run_dir=tmp_path, data=other, resume=True)
    assert train(tiny("run.log_every=2"), run_dir=tmp_path, data=opened, resume=True).status == "finished"      # moves no weight


def test_a_damaged_newest_checkpoint_resumes_from_the_one_before(tiny: Tiny, opened: Data, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole: TrainResult = train(tiny(), run_dir=tmp_path, data=opened)
    (tmp_path / "checkpoints/step-0000000006/state.json").write_text("{")
    recorder = Recorder()
    again = train(tiny(), run_dir=tmp_path, data=opened, resume=True, tracker=recorder)
    assert recorder.started[0].step == 4
    assert "step-0000000004, is used instead" in caplog.text
    assert again.losses == whole.losses


def test_a_new_run_does_not_begin_among_the_checkpoints_of_another(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    train(tiny(), run_dir=tmp_path, data=opened, **stop_after(1))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="a new run needs a folder of its own"):
        train(tiny(), run_dir=tmp_path, data=opened)


def test_gpu_memory_that_runs_out_is_one_clear_error(tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> Losses:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(HyMo, "loss", full)
    with pytest.raises(BudgetError, match=r"micro-batches of 4 rows, about weights .* GiB; set train\.micro_batch to less or to auto"):
        train(tiny(), run_dir=tmp_path, data=opened)


def test_a_finished_run_resumes_to_its_result(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    whole = train(tiny(), run_dir=tmp_path, data=opened)
    again = train(tiny(), run_dir=tmp_path, data=opened, resume=True)
    assert (again.status, again.losses, again.validation) == ("finished", whole.losses, whole.validation)
