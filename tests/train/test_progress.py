import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from hymo.data import Data
from hymo.errors import CheckpointError
from hymo.recipe import Recipe
from hymo.train.progress import Progress, check_same, differences, state_of

Tiny = Callable[..., Recipe]


def saved(progress: Progress, recipe: Recipe, data: Data) -> dict[str, Any]:
    """A state.json, read back."""
    position = {"loader": {"position": 0}, "batches": progress.step}
    return json.loads(json.dumps({**state_of(progress, position, recipe, data, 4), "step": progress.step, "ranks": 1}))


def test_json_holds_it_exactly(tiny: Tiny, opened: Data) -> None:
    before = Progress(3, [0.1 + 0.2, math.inf, 1e-300], [(1, 1 / 3, None), (2, 0.5, 2 / 3)], [2], [7], [1])
    state = json.loads(json.dumps(state_of(before, {"batches": 3}, tiny(), opened, 4)))
    assert asdict(Progress.of(state)) == asdict(before)
    assert (state["position"], state["micro_batch"]) == ({"batches": 3}, 4)


def test_what_moves_no_weight_may_change(tiny: Tiny, opened: Data) -> None:
    state = saved(Progress(), tiny(), opened)
    check_same(state, tiny("name=other", "run.keep_last=5", "train.micro_batch=2", "eval.every=1"), opened)
    with pytest.raises(CheckpointError, match=r"got train\.seq_len=16 where it was 32"):
        check_same(state, tiny("train.seq_len=16"), opened)


def test_a_state_that_hymo_did_not_write_is_refused(tiny: Tiny, opened: Data) -> None:
    good = saved(Progress(1, [math.nan], [(1, 0.5, None)]), tiny(), opened)
    check_same(good, tiny(), opened)
    for change, says in [
        ({"progress": None}, "progress: "), ({"surprise": 1}, "surprise: "), ({"ranks": 0}, "ranks: "), ({"step": "1"}, "step: "),
        ({"position": {"loader": [], "batches": 1}}, "position.loader: "), ({"step": 2}, r"the loss of each of its steps, but got 2, 1 and 1"),
    ]:
        with pytest.raises(CheckpointError, match=says):
            check_same({**good, **change}, tiny(), opened)
    del good["data"]
    with pytest.raises(CheckpointError, match=r"must be as hymo wrote it, but data: Field required"):
        check_same(good, tiny(), opened)


def test_differences_are_leaves() -> None:
    assert list(differences({"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"b": 1, "c": [2]}, "e": 3})) == [
        "a.c=[2] where it was [1]", "d=None where it was 2", "e=3 where it was None",
    ]
