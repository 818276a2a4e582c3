from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hymo.cost import count
from hymo.data import Data
from hymo.errors import BudgetError
from hymo.recipe import Recipe
from hymo.train import checkpoint, micro_batch
from hymo.train.parallel import World
from hymo.train.session import Session

Tiny = Callable[..., Recipe]
CPU = World(torch.device("cpu"))


def test_mfu_is_flops_over_all_the_peaks(tiny: Tiny, opened: Data) -> None:
    session = Session(tiny(), opened, CPU)
    assert session.mfu(1000.0) is None
    session.peak, session.world = 1e12, World(torch.device("cpu"), size=4)
    assert session.mfu(1000.0) == pytest.approx(1000.0 * count(tiny()).flops_per_token_train / 4e12)
    session.feed.close()


def test_facts_say_what_was_decided(tiny: Tiny, opened: Data) -> None:
    session = Session(tiny("train.micro_batch=2"), opened, CPU)
    facts = session.facts
    assert (facts["micro_batch"], facts["accumulation"], facts["world"], facts["compiled"]) == (2, 2, 1, "False")
    assert facts["kernel/gated_recurrence"] == "chunked"
    assert facts["peak_tflops"] == "unknown: no MFU"
    session.feed.close()


def test_a_machine_too_small_is_refused_before_anything_is_allocated(tiny: Tiny, opened: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "free_bytes", lambda _: 1000)
    monkeypatch.setattr("hymo.train.session.build_hymo", lambda *_: pytest.fail("allocated"))
    with pytest.raises(BudgetError, match="must fit the device"):
        Session(tiny("train.micro_batch=auto"), opened, CPU)


def test_a_loaded_session_keeps_the_micro_batch_it_was_saved_with(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    """`auto` may choose another one on resume, when less memory is free: sums would be rounded in another order."""
    recipe = tiny("train.micro_batch=auto")
    first = Session(recipe, opened, CPU)
    checkpoint.save(tmp_path, 1, first.groups(), {"micro_batch": 2}, CPU)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert first.stepper.micro_batch == 4
    first.load(found)
    assert first.stepper.micro_batch == 2
    first.feed.close()
