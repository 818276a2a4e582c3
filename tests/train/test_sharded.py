from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hymo.train.parallel import World
from hymo.train.sharded import read_plain, read_sharded, shapes, write_plain

ALONE = World(torch.device("cpu"))
TENSORS = {"w": torch.arange(12.0).view(4, 3), "step": torch.tensor(7.0), "n": torch.tensor([1, 2]), "t": torch.arange(6.0).view(2, 3).T}


def zeros() -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(t) for name, t in TENSORS.items()}


@pytest.mark.parametrize("sharded", [False, True])
def test_what_one_process_wrote_is_read_whole_and_by_dcp(tmp_path: Path, sharded: bool) -> None:
    write_plain(tmp_path / "x.safetensors", TENSORS)
    assert shapes(tmp_path) == {"w": (4, 3), "step": (), "n": (2,), "t": (3, 2)}
    into = zeros()
    if sharded:
        read_sharded(tmp_path, into, ALONE)
    else:
        read_plain(tmp_path, into)
    assert all(torch.equal(into[name], t) for name, t in TENSORS.items())


def test_shards_are_put_together_by_their_offsets(tmp_path: Path) -> None:
    """Files as DCP writes them: each shard with its place in the header."""
    w = TENSORS["w"]
    for i, (begin, end) in enumerate(((0, 3), (3, 4))):
        header = {"DCP_SHARDING_INFO": f'{{"w": {{"saved_offsets": [{begin}, 0]}}}}', "DCP_VERSION": "1.0", "format": "pt"}
        save_file({"w": w[begin:end].clone()}, tmp_path / f"shard-{i}.safetensors", metadata=header)
    assert shapes(tmp_path) == {"w": (4, 3)}
    into = {"w": torch.zeros(4, 3)}
    read_sharded(tmp_path, into, ALONE)
    assert torch.equal(into["w"], w)
