"""How far a run has come, as a checkpoint keeps it, and whether a checkpoint is this run's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hymo.data import Data
from hymo.errors import CheckpointError
from hymo.recipe import Recipe, fingerprint, to_dict
from hymo.settings import Settings


@dataclass
class Progress:
    """Everything a run remembers of itself, the tensors apart. JSON holds it exactly."""

    step: int = 0
    losses: list[float] = field(default_factory=list)                                   # main loss of each step
    validation: list[tuple[int, float, float | None]] = field(default_factory=list)     # (step, loss, bits per byte)
    bad_steps: list[int] = field(default_factory=list)                                  # steps that were not finite
    skip: list[int] = field(default_factory=list)                                       # numbers of batches left out after a rollback
    rollbacks: list[int] = field(default_factory=list)                                  # steps that were rolled back to

    @staticmethod
    def of(state: dict[str, Any]) -> Progress:
        """The progress that a checkpoint's state holds."""
        found = Progress(**state["progress"])
        found.validation = [(step, loss, bpb) for step, loss, bpb in found.validation]
        return found


class Position(Settings):
    """Where the feed stands."""

    loader: dict[str, Any]
    batches: int = Field(ge=0)


class SavedState(BaseModel):
    """What state.json must hold; NaN losses are kept, so that it is no Settings."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: int = Field(ge=0)
    ranks: int = Field(gt=0)
    micro_batch: int = Field(gt=0)
    progress: Progress
    position: Position
    recipe: dict[str, Any]
    fingerprint: str
    data: str


def check_form(state: dict[str, Any]) -> None:
    """Refuse a state that hymo did not write, whatever its checksum says. Raises CheckpointError."""
    try:
        found = SavedState.model_validate_json(json.dumps(state))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise CheckpointError(f"a checkpoint's state.json must be as hymo wrote it, but {where}: {first['msg']}") from None
    if not found.step == found.progress.step == len(found.progress.losses):
        steps = f"{found.step}, {found.progress.step} and {len(found.progress.losses)}"
        raise CheckpointError(f"a checkpoint's state.json must hold the loss of each of its steps, but got {steps}; hymo did not write it")


def state_of(progress: Progress, position: dict[str, Any], recipe: Recipe, data: Data, micro_batch: int) -> dict[str, Any]:
    """What a checkpoint's state.json says."""
    return {
        "progress": asdict(progress),
        "position": position,
        "recipe": to_dict(recipe),
        "fingerprint": fingerprint(recipe),
        "data": data.fingerprint,
        "micro_batch": micro_batch,
    }


def check_same(state: dict[str, Any], recipe: Recipe, data: Data) -> None:
    """Refuse to go on from the checkpoint of another recipe, or over other data. Raises CheckpointError with the differences."""
    check_form(state)
    if state["fingerprint"] != fingerprint(recipe):
        found = list(differences(state["recipe"], to_dict(recipe)))
        raise CheckpointError(f"to resume, the recipe must be the one that the run began with, but got {'; '.join(found[:5]) or 'other block files'}"
                              f"{f' and {len(found) - 5} more' if len(found) > 5 else ''}; undo the change, or start a new run")
    if state["data"] != data.fingerprint:
        raise CheckpointError(f"to resume, the data must be what the run began with, fingerprint {state['data']}, but got {data.fingerprint}; "
                              "restore the files, or start a new run")


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """'model.d_model=64 where it was 32', …: the leaves in which two trees differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    elif before != now:
        yield f"{path}={now!r} where it was {before!r}"
