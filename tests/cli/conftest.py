import sys
from dataclasses import dataclass

import pytest

from hymo.cli import main

SMALL = ["--scale", "tiny", "model.pattern=MG", "train.steps=4", "train.tokens_per_step=128", "eval.tokens=256", "eval.every=2", "train.threads=1"]


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def hymo(tmp_path, tmp_path_factory, monkeypatch, capsys):
    """The command as a function, in a new working folder, its cache shared by the whole session: hymo("show", "v1_0").out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYMO_CACHE", str(tmp_path_factory.getbasetemp().parent / "hymo-cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def call(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["hymo", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return Outcome(left.value.code or 0, captured.out, captured.err)

    return call
