"""`run` and `resume`: train a recipe, at the scale that suits the machine, in a run folder that can be gone on with."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hymo.cli.common import AllowCode, Json, Output, RunName, Scale, Words, print_json, split_words, warn_of_scale
from hymo.environment import cores
from hymo.errors import BudgetError, HymoError
from hymo.files import write_whole
from hymo.runs import RECIPE, label
from hymo.units import parse_time

if TYPE_CHECKING:
    from hymo.display import Display
    from hymo.recipe import Recipe
    from hymo.tracking import MlflowTracker
    from hymo.train import TrainResult
    from hymo.train.parallel import World

app = typer.Typer()
Nproc = Annotated[int, typer.Option("--nproc", min=1, help="processes to start on this machine, one a GPU")]
WITHIN_GPU, WITHIN_CPU = "30m", "5m"
TAGS = "tags.json"      # what the command line said of the run, for one that is killed before it tells its tracker


@app.command()
def run(
    words: Words = None,
    scale: Scale = None,
    within: Annotated[str | None, typer.Option("--within", metavar="TIME", help="time the chosen scale may take (default 30m; 5m on a CPU)")] = None,
    nproc: Nproc = 1,
    json: Json = False,
    allow_code: AllowCode = False,
) -> None:
    """Train a recipe. Without --scale: the largest scale that fits this machine and ends in time, said first."""
    if scale is not None and within is not None:
        raise HymoError(f"--within chooses a scale, so --scale must be left out, but got {scale=} and {within=}")
    seconds = parse_time(within) if within else None
    from hymo import display
    from hymo.recipe import dump
    from hymo.train.parallel import joined

    name, overrides = split_words(words)
    shown = display.choose(json)
    recipes = candidates(name, overrides, scale, allow_code)
    with joined(next(iter(recipes.values())).train.device) as world:
        check_processes(nproc, world)
        size = world.share(pick_scale(name, recipes, seconds, world, nproc, shown.say) if world.first else "")
        if nproc > 1:
            start_processes(nproc, recipes[size], ["run", name, *overrides, "--scale", size], json, allow_code)
            return
        recipe = recipes[size]
        if world.first:
            warn_of_scale(name, size)
        folder = Path(world.share(str(Path(recipe.run.output) / f"{recipe.name}-{size}-{uuid.uuid4().hex[:8]}")))
        tags = {"hymo.recipe": recipe.name, "hymo.scale": size, "hymo.overrides": " ".join(overrides)}
        tags["mlflow.runName"] = label(folder.name, overrides)
        if world.first:
            folder.mkdir(parents=True)
            write_whole(folder / TAGS, dumps(tags))
            write_whole(folder / RECIPE, dump(recipe))  # last: from here on the run can be gone on with
        world.barrier()
        try:
            go(recipe, folder, shown, json, resume=False, tags=tags)
        except HymoError:
            journal = folder / "journal.jsonl"
            if world.first and not (journal.is_file() and journal.stat().st_size):
                shutil.rmtree(folder)  # it never began: nothing half-written stays
            raise


@app.command()
def resume(run: RunName, output: Output = Path("runs"), nproc: Nproc = 1, json: Json = False, allow_code: AllowCode = False) -> None:
    """Go on with a stopped or killed run. It takes up at its newest whole checkpoint."""
    from hymo import display
    from hymo.cli.runs import folder_of
    from hymo.recipe import load_recipe

    folder = folder_of(run, output)
    recipe = load_recipe(folder / RECIPE, allow_code=allow_code)
    if nproc > 1:
        start_processes(nproc, recipe, ["resume", str(folder)], json, allow_code)
    else:
        go(recipe, folder, display.choose(json), json, resume=True, tags=known_tags(folder))


def known_tags(folder: Path) -> dict[str, str]:
    """What the command that began the run said of it. A damaged file costs labels, not the run."""
    try:
        tags = loads((folder / TAGS).read_text())
        return {str(name): str(value) for name, value in tags.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError):
        typer.echo(f"{folder / TAGS} is damaged: the run goes on, and MLflow does not learn its scale and overrides", err=True)
        return {}


def candidates(name: str, overrides: list[str], scale: str | None, allow_code: bool) -> dict[str, Recipe]:
    """The recipe at the scale that was asked for, or at every scale at which the overrides make sense."""
    from hymo.errors import RecipeError
    from hymo.recipe import load_recipe, scales

    if scale is not None:
        return {scale: load_recipe(name, overrides, scale=scale, allow_code=allow_code)}
    found: dict[str, Recipe] = {}
    refused: list[RecipeError] = []
    for each in [*scales(name), "full"]:
        try:
            found[each] = load_recipe(name, overrides, scale=each, allow_code=allow_code)
        except RecipeError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found


def pick_scale(name: str, recipes: dict[str, Recipe], within: float | None, world: World, nproc: int, say: Callable[[str], None]) -> str:
    """The only scale there is, if it fits the memory, or the one that suits the machine, with the reasons said."""
    from hymo import sizing

    devices = max(nproc, world.size)
    if len(recipes) == 1:
        [(scale, recipe)] = recipes.items()
        sizing.check_memory(recipe, world.device, devices)
        return scale
    limit = within or parse_time(WITHIN_CPU if world.device.type == "cpu" else WITHIN_GPU)
    choice = sizing.choose(name, recipes, limit, world.device, devices)
    for sentence in choice.words:
        say(sentence)
    return choice.chosen.scale


def go(recipe: Recipe, folder: Path, shown: Display, json: bool, *, resume: bool, tags: dict[str, str] | None = None) -> None:
    """Train in `folder`, show it, and say how it ended and how to go on."""
    from hymo.tracking import MlflowTracker
    from hymo.train import train

    class Told(MlflowTracker):
        """Tells the display of validations, too."""

        def metrics(self, step: int, values: dict[str, float]) -> None:
            super().metrics(step, values)
            if "val/loss" in values:
                shown.validated(step, values)

    from hymo.train.checkpoint import paths

    if recipe.eval.probes:
        from hymo.probes.base import planned

        planned(recipe)  # one that cannot be made is refused before the training, not after it
    first = int(os.environ.get("RANK", "0")) == 0
    tracker = Told(recipe, folder, tags=tags) if first else None
    resume = resume and bool(paths(folder / "checkpoints"))  # killed before its first checkpoint, it begins
    with interruptible(shown.say if first else lambda _: None) as stop, shown:
        result = train(recipe, run_dir=folder, tracker=tracker, resume=resume, on_step=shown.step, should_stop=stop.is_set)
    if tracker is not None:
        if result.status == "finished" and recipe.eval.probes:
            from hymo.cli.eval import probe_finished

            probe_finished(folder, recipe.train.device, json)
        report(recipe, result, tracker, shown, json)
    if result.status != "finished":
        raise typer.Exit(130 if result.status == "stopped" else 1)


@contextmanager
def interruptible(say: Callable[[str], None]) -> Iterator[threading.Event]:
    """The first Ctrl-C asks for a stop after the step that is running; the second one ends the program there and then."""
    stop = threading.Event()

    def ask(signum: int, frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)
        say("stopping after this step, with a checkpoint; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def report(recipe: Recipe, result: TrainResult, tracker: MlflowTracker, shown: Display, json: bool) -> None:
    """The last words: how good it became, where it is in MLflow, how to go on."""
    import math

    folder, words, chance = result.run_dir, recipe.model.vocab_size, math.log(recipe.model.vocab_size)
    _, loss, bpb = result.validation[-1] if result.validation else (0, None, None)
    if json:
        print_json({"status": result.status, "step": result.step, "val_loss": loss, "val_bpb": bpb, "run": folder.name, "folder": str(folder),
                    "mlflow": tracker.link, "tracking_problem": tracker.problem})  # fmt: skip
        return
    shown.say(f"{folder.name}: {result.status} after {result.step:,} steps" + (f": {result.message}" if result.message else ""))
    if loss is not None:
        bits = "" if bpb is None else f", {bpb:.3f} bits per byte"
        shown.say(f"val loss {loss:.4f}{bits} on held-out text: {loss / chance:.0%} of ln({words:,}) = {chance:.4f}, the loss of knowing nothing")
    if result.status == "stopped":
        shown.say(f"go on with: hymo resume {folder.name}" + ("" if recipe.run.output == "runs" else f" --output {recipe.run.output}"))
    if tracker.problem:
        shown.say(f"the tracking server did not take everything ({tracker.problem}); it is kept in {folder}, and `hymo sync` sends it")
    if tracker.link:
        page = "" if tracker.tracking.startswith("http") else "   (`hymo ui` starts the page)"
        shown.say(f"MLflow run: {tracker.link}{page}")


def check_processes(nproc: int, world: World) -> None:
    """Raise when `nproc` processes cannot be started here."""
    import torch

    if nproc > 1 and world.size > 1:
        raise HymoError(f"--nproc starts the processes itself, so hymo must be started once, but got {nproc=} in {world.size} of them; leave it out")
    if world.device.type == "cuda" and nproc > torch.cuda.device_count():
        raise BudgetError(f"every process needs a GPU of its own, but got {nproc=} and {torch.cuda.device_count()} GPUs; start fewer")


def start_processes(nproc: int, recipe: Recipe, command: list[str], json: bool, allow_code: bool) -> None:
    """The same command in `nproc` processes of this machine, through torchrun. Raises RecipeError, once, for what each of them would refuse."""
    from hymo.train.micro_batch import rows_per_rank

    rows_per_rank(recipe, nproc)
    options = [*(["--json"] if json else []), *(["--allow-code"] if allow_code else [])]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // nproc)), **os.environ}
    code = subprocess.run([*torchrun, "-m", "hymo", *command, *options], check=False, env=environment).returncode
    if code:
        raise typer.Exit(code)
