from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hymo.model import build_hymo
from hymo.probes.base import Subject
from hymo.recipe import Recipe, load_recipe


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for all probes' tests: the corpus is tokenised once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYMO_CACHE", str(folder))
        yield folder


@pytest.fixture
def text_recipe() -> Recipe:
    return load_recipe("v1_0", ["model.pattern=M", "model.layers.G=null", "eval.tokens=4096"], scale="tiny")


@pytest.fixture
def task_recipe() -> Recipe:
    return load_recipe("mqar", scale="tiny")


@pytest.fixture
def subject(text_recipe: Recipe) -> Subject:
    """An untrained model on text."""
    return Subject(build_hymo(text_recipe), text_recipe)


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Callable[[Subject, Callable[[list[int], int], int]], None]:
    """Replace a subject's model by a function of (the row so far) -> token, which is then the most probable one by a wide margin."""

    def make(subject: Subject, answer: Callable[[list[int]], int]) -> None:
        vocab = subject.recipe.model.vocab_size

        def logits_at(tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
            rows: list[Any] = []
            for row, where in zip(tokens_BT.tolist(), where_BT.tolist(), strict=True):
                for t, wanted in enumerate(where):
                    if wanted:
                        rows.append(torch.nn.functional.one_hot(torch.tensor(answer(row[: t + 1])), vocab) * 5.0)
            return torch.stack(rows)

        monkeypatch.setattr(subject.model, "logits_at", logits_at)

    return make
