"""Without a GPU, Triton kernels run in Triton's interpreter, which must be chosen before Triton is first imported."""

import os
import shutil
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
