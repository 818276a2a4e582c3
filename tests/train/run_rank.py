"""One of the two processes of test_parallel.py: a run on two ranks, cut and resumed on one, cut and resumed on two.

`python run_rank.py recipe.json run_dir port second_port`, with torchrun's variables but for the port.
"""

import json
import os
import sys
from pathlib import Path

import torch

from hymo.recipe import Recipe, recipe_from_dict
from hymo.train import StepInfo, TrainResult, train
from hymo.train.parallel import TORCHRUN


def part(recipe: Recipe, run_dir: Path, stop_after: int) -> TrainResult:
    """Go on until `stop_after` steps are done. Only rank 0 is called back: the other one stops because rank 0 does."""
    done = 0

    def on_step(info: StepInfo) -> None:
        nonlocal done
        done = info.step

    return train(recipe, run_dir=run_dir, resume=True, on_step=on_step, should_stop=lambda: done >= stop_after)


def main(recipe_file: str, folder: str, *ports: str) -> None:
    """Print what each part returned, one JSON object a line."""
    torch.set_num_threads(1)
    recipe, run_dir = recipe_from_dict(json.loads(Path(recipe_file).read_text())), Path(folder)
    two_ranks = {name: os.environ[name] for name in TORCHRUN if name != "MASTER_PORT"}
    for port, stop_after in ((ports[0], 2), (None, 4), (ports[1], 99)):
        for name in TORCHRUN:
            os.environ.pop(name, None)
        if port is not None:
            os.environ.update(two_ranks, MASTER_PORT=port)
        elif two_ranks["RANK"] != "0":
            continue        # rank 0 goes on alone, and meets this one again at the next port
        result = part(recipe, run_dir, stop_after)
        shards = len(list(run_dir.glob(f"checkpoints/step-{result.step:010d}/model/*")))
        print(json.dumps({"status": result.status, "step": result.step, "losses": result.losses, "validation": result.validation, "shards": shards}))


if __name__ == "__main__":
    main(*sys.argv[1:])
