import json
import math
from collections.abc import Callable
from dataclasses import asdict

import pytest

from hymo.data import Data
from hymo.errors import CheckpointError
from hymo.recipe import Recipe
from hymo.train.progress import Progress, check_same, differences, state_of

Tiny = Callable[..., Recipe]


def test_json_holds_it_exactly(tiny: Tiny, opened: Data) -> None:
    before = Progress(3, [0.1 + 0.2, math.inf, 1e-300], [(1, 1 / 3, None), (2, 0.5, 2 / 3)], [2], [7], [1])
    state = json.loads(json.dumps(state_of(before, {"batches": 3}, tiny(), opened, 4)))
    assert asdict(Progress.of(state)) == asdict(before)
    assert (state["position"], state["micro_batch"]) == ({"batches": 3}, 4)


def test_what_moves_no_weight_may_change(tiny: Tiny, opened: Data) -> None:
    state = json.loads(json.dumps(state_of(Progress(), {}, tiny(), opened, 4)))
    check_same(state, tiny("name=other", "run.keep_last=5", "train.micro_batch=2", "eval.every=1"), opened)
    with pytest.raises(CheckpointError, match=r"got train\.seq_len=16 where it was 32"):
        check_same(state, tiny("train.seq_len=16"), opened)


def test_differences_are_leaves() -> None:
    assert list(differences({"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"b": 1, "c": [2]}, "e": 3})) == [
        "a.c=[2] where it was [1]", "d=None where it was 2", "e=3 where it was None",
    ]
