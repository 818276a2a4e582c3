from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hymo.cost import memory
from hymo.data import Data
from hymo.errors import BudgetError, RecipeError
from hymo.recipe import Recipe
from hymo.train import NullTracker, RunStart, micro_batch, train
from hymo.train.parallel import World

Tiny = Callable[..., Recipe]
CPU = torch.device("cpu")


def test_sizes_to_consider(tiny: Tiny) -> None:
    step = "train.tokens_per_step=384"       # 12 rows of 32
    assert micro_batch.candidates(tiny(step, "train.micro_batch=auto"), World(CPU)) == [12, 6, 4, 3, 2, 1]
    assert micro_batch.candidates(tiny(step, "train.micro_batch=auto"), World(CPU, size=2)) == [6, 3, 2, 1]
    assert micro_batch.candidates(tiny(step, "train.micro_batch=3"), World(CPU)) == [3]
    with pytest.raises(RecipeError, match="12, but got 5; use 4"):
        micro_batch.candidates(tiny(step, "train.micro_batch=5"), World(CPU))
    with pytest.raises(RecipeError, match="got 12 rows for 5 devices"):
        micro_batch.candidates(tiny(step), World(CPU, size=5))


def test_the_largest_that_fits_by_estimate(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny("train.micro_batch=auto", "train.tokens_per_step=256")     # 8 rows
    monkeypatch.setattr(micro_batch, "memory", lambda recipe, rows, device: {"weights": 10, "activations": 20 * rows})
    for free, wanted in ((1000, 8), (170 / 0.9, 8), (169 / 0.9, 4), (34, 1)):
        monkeypatch.setattr(micro_batch, "free_bytes", lambda _, free=free: free)
        assert micro_batch.estimated(recipe, World(CPU)) == wanted
    monkeypatch.setattr(micro_batch, "free_bytes", lambda _: 33)
    with pytest.raises(BudgetError, match=r"a row of 32 tokens must fit the device, .* weights 0\.00, activations 0\.00 GiB; use a smaller scale"):
        micro_batch.estimated(recipe, World(CPU))


def test_auto_on_a_small_machine_keeps_the_global_batch(tiny: Tiny, opened: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for one row: the step of four rows becomes four passes, and the losses are those of one."""
    recipe, facts = tiny("train.micro_batch=auto"), list[tuple[object, object]]()

    class Recorder(NullTracker):
        def start(self, info: RunStart) -> None:
            facts.append((info.facts["micro_batch"], info.facts["accumulation"]))

    whole = train(recipe, run_dir=tmp_path / "whole", data=opened, tracker=Recorder())
    monkeypatch.setattr(micro_batch, "free_bytes", lambda _: sum(memory(recipe, 1, "cpu").values()) / micro_batch.ROOM + 1)
    parts = train(recipe, run_dir=tmp_path / "parts", data=opened, tracker=Recorder())
    assert facts == [(4, 1), (1, 4)]
    assert parts.losses == pytest.approx(whole.losses, rel=2e-6)
