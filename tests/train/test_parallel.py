import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hymo.data import Data
from hymo.errors import HymoError
from hymo.model import build_hymo
from hymo.recipe import Recipe, to_dict
from hymo.train import checkpoint, train
from hymo.train.parallel import World, first_host, rendezvous

Tiny = Callable[..., Recipe]
ALONE = World(torch.device("cpu"))


def two_ranks(recipe: Recipe, run_dir: Path) -> list[list[dict[str, Any]]]:
    """What run_rank.py says in each of two processes that meet over gloo."""
    run_dir.mkdir()
    (run_dir / "recipe.json").write_text(json.dumps(to_dict(recipe)))
    with socket.socket() as one, socket.socket() as other:
        ports = [(free.bind(("127.0.0.1", 0)), str(free.getsockname()[1]))[1] for free in (one, other)]
    command = [sys.executable, str(Path(__file__).with_name("run_rank.py")), str(run_dir / "recipe.json"), str(run_dir), *ports]
    here = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(Path(__file__).parents[2])}
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**here, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in outputs]


def weights(run_dir: Path, recipe: Recipe) -> dict[str, torch.Tensor]:
    """The newest checkpoint's model, whatever number of ranks wrote it."""
    found = checkpoint.latest(run_dir / "checkpoints")
    assert found is not None
    into = build_hymo(recipe).state_dict()
    found.load("model", into, ALONE)
    return into


def test_two_ranks_then_one_then_two_are_one_rank_all_along(tiny: Tiny, opened: Data, tmp_path: Path) -> None:
    """Same rows, same normalisation, whole matrices orthogonalised: what differs is the order of some sums."""
    recipe = tiny("train.micro_batch=1", "optimizer.experts=normuon", "model.layers.M.ffn.balance=sign_bias")
    alone = train(recipe, run_dir=tmp_path / "alone", data=opened)
    (first, second, third), (first_elsewhere, third_elsewhere) = two_ranks(recipe, tmp_path / "cut")
    assert (first, third) == (first_elsewhere, third_elsewhere), "every rank sees the same losses"
    ends = [(part["status"], part["step"], part["shards"]) for part in (first, second, third)]
    assert ends == [("stopped", 3, 2), ("stopped", 4, 1), ("finished", 6, 2)]
    assert third["losses"] == pytest.approx(alone.losses, rel=1e-4)
    assert third["losses"][:2] == pytest.approx(alone.losses[:2], rel=2e-6)
    assert [v[:2] for v in third["validation"]] == [[step, pytest.approx(loss, rel=1e-4)] for step, loss, _ in alone.validation]
    one, two = weights(tmp_path / "alone", recipe), weights(tmp_path / "cut", recipe)
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.equal(one["layers.0.ffn.gate.bias"], two["layers.0.ffn.gate.bias"]), "balancing counts are global"


def test_torchrun_is_adopted() -> None:
    env = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1", "OTHER": "x"}
    assert rendezvous(env) == {k: v for k, v in env.items() if k != "OTHER"}
    assert rendezvous({}) == {}
    with pytest.raises(HymoError, match="got no LOCAL_RANK; start it with torchrun"):
        rendezvous({k: v for k, v in env.items() if k != "LOCAL_RANK"})


def test_a_slurm_step_is_adopted_and_a_batch_script_is_not() -> None:
    step = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_JOB_ID": "20123"}
    assert rendezvous(step) == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu03", "MASTER_PORT": "20123"}
    assert rendezvous({**step, "MASTER_ADDR": "b", "MASTER_PORT": "7"})["MASTER_ADDR"] == "b"
    assert rendezvous({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}) == {}
    assert rendezvous({**step, "SLURM_STEP_NUM_TASKS": "1"}) == {}


@pytest.mark.parametrize(("nodes", "host"), [("node7", "node7"), ("n1,n2", "n1"), ("gpu[03-05,9],cpu1", "gpu03"), ("a-b[007]", "a-b007")])
def test_first_host(nodes: str, host: str) -> None:
    assert first_host(nodes) == host
