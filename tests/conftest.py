"""Without a GPU, Triton kernels run in Triton's interpreter, which must be chosen before Triton is first imported."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database whose schema exists: making it takes seconds, copying it none."""
    from hymo.tracking import client

    database = tmp_path_factory.mktemp("empty") / "mlflow.db"
    client(f"sqlite:///{database}")
    return database


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> str:
    """Address of an MLflow database of one's own."""
    database = tmp_path / "store" / "mlflow.db"
    database.parent.mkdir()
    shutil.copy(empty_store, database)
    return f"sqlite:///{database}"


@dataclass
class Outcome:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


@pytest.fixture
def hymo(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """The command as a function, in a new working folder, its cache shared by the whole session: hymo("show", "v1_0").out."""
    from hymo.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYMO_CACHE", str(tmp_path_factory.getbasetemp().parent / "hymo-cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def call(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["hymo", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return Outcome(int(left.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def small() -> list[str]:
    """Words that make `hymo run` a matter of a second."""
    sizes = ["model.pattern=MG", "train.steps=4", "train.tokens_per_step=128", "eval.tokens=256", "eval.every=2", "train.threads=1"]
    return ["--scale", "tiny", *sizes]
