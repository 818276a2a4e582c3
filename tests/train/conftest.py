from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hymo.data import Data, open_data
from hymo.recipe import Recipe, load_recipe

TINY = (
    "model.pattern=MG", "model.d_model=16", "model.layers.M.ffn.inter_dim=16", "model.layers.G.mixer.d_inner=16", "model.mtp.inter_dim=16",
    "train.steps=6", "train.seq_len=32", "train.tokens_per_step=128", "train.micro_batch=4", "train.threads=1", "train.device=cpu",
    "eval.tokens=256", "eval.every=3", "run.checkpoint_every=2",
)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of this test run's own, and a cache folder for its tokens."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = torch.Generator().manual_seed(0)
    words = ["state", "decay", "gate", "head", "value", "key", "row", "expert"]
    for i in range(200):        # 15 to 80 bytes: rows of 32 tokens hold one, two or three documents
        picks = torch.randint(len(words), (3 + i % 13,), generator=draw).tolist()
        (folder / f"{i:03d}.txt").write_text(" ".join(words[p] for p in picks))
    return folder


@pytest.fixture
def tiny(corpus: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    """A recipe of two small layers with everything in it: tiny("train.steps=3", …)."""
    monkeypatch.setenv("HYMO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    torch.set_num_threads(1)

    def make(*overrides: str) -> Recipe:
        return load_recipe("v1_0", [*TINY, f"data.source={corpus}", "data.validation_frac=0.2", *overrides], scale="tiny")

    return make


@pytest.fixture
def opened(tiny: Callable[..., Recipe]) -> Data:
    """The data of tiny()."""
    return open_data(tiny())
