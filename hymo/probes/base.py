"""What a probe is, what it is told, and what it answers.

A probe is one class in one file of hymo/probes (or an installed package's entry point `hymo.probes`): its settings are its fields, `check` says
from the recipe alone whether it can be made, `measure` makes it. Everything it finds becomes metrics `probe/<name>/…`, a table and a plot.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor

from hymo.data import Data, open_data
from hymo.data.batch import IGNORED, PADDING
from hymo.errors import ProbeError, did_you_mean
from hymo.evaluate import EvalResult, evaluate
from hymo.model import HyMo
from hymo.recipe import Recipe
from hymo.settings import Settings
from hymo.train.device import compute_dtype

LONGEST = 4             # times the trained length: a probe goes no further
LOGITS = 1 << 24        # numbers of output and hidden state that are made at once
T = TypeVar("T", bound="type[Probe]")

_probes: dict[str, type[Probe]] = {}


@dataclass(frozen=True)
class Finding:
    """What a probe found.

    summary   the few numbers that stand for it, by name: what an ablation compares
    value     what a cell holds, with its unit
    axes      one or two of (name, labels)
    cells     a value for each combination of labels, the first axis slowest
    setting   in one line, what was measured on what
    beyond    labels of the last axis that stand for rows longer than those of training
    """

    probe: str
    summary: dict[str, float]
    value: str
    axes: tuple[tuple[str, Sequence[str | int]], ...]
    cells: list[float]
    setting: str
    beyond: tuple[str | int, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """Summary and cells under the names that they are logged by: probe/mqar/accuracy, probe/needle/depth50_length64."""
        cells = {"_".join(parts): value for parts, value in zip(self._labels(), self.cells, strict=True)}
        return {f"probe/{self.probe}/{name}": value for name, value in {**cells, **self.summary}.items()}

    def _labels(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = [()]
        for name, labels in self.axes:
            found = [(*before, f"{name}{label}") for before in found for label in labels]
        return found


@dataclass(frozen=True)
class Subject:
    """A trained model and the recipe of its run. The run's data is opened when a probe first asks for it."""

    model: HyMo
    recipe: Recipe
    given: Data | None = field(default=None, repr=False)

    @cached_property
    def data(self) -> Data:
        """The run's own data."""
        return self.given or open_data(self.recipe)

    @cached_property
    def held_out(self) -> EvalResult:
        """The model on its run's held-out tokens, at the trained length."""
        return evaluate(self.model, self.data, self.recipe)

    @cached_property
    def text(self) -> Tensor:
        """All held-out tokens of the run, documents one after another."""
        return torch.cat([batch.inputs[batch.input_documents != PADDING] for batch in self.data.validation(1)])

    def stretches(self, count: int, size: int) -> Tensor:
        """(count, size): stretches of the held-out text, evenly spread over it. Raises ProbeError when it is shorter than one."""
        if len(self.text) < size:
            raise ProbeError(f"this probe must read {size:,} held-out tokens, but got {len(self.text):,}; raise eval.tokens, or give more text")
        starts = torch.linspace(0, len(self.text) - size, count).long()
        return torch.stack([self.text[start : start + size] for start in starts])

    def words(self) -> Tensor:
        """The tokens that stand for text, of which a probe may draw: all but <|endoftext|> and the like; all, for a task."""
        size = self.data.tokenizer.bytes_per_token
        return torch.arange(len(size))[size > 0] if size.any() else torch.arange(len(size))

    @torch.no_grad()
    def answers(self, inputs_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
        """(hits, nats) at every place with a target other than −100, row by row: bool and float64 (N,), on the CPU.

        A hit is a target that no other token of the vocabulary is more probable than. Rows hold one document each; the model computes in its run's
        own type, in evaluation mode.
        """
        device = self.model.embedding.weight.device
        dtype = compute_dtype(self.recipe.train.dtype, device)
        asked_BT = targets_BT != IGNORED
        width = max(1, int(asked_BT.sum(dim=1).max())) * self.recipe.model.vocab_size + inputs_BT.shape[1] * self.recipe.model.d_model
        rows = max(1, LOGITS // width)
        hits, nats = [], []
        training = self.model.training
        self.model.eval()
        try:
            for some_BT, where_BT, wanted_BT in zip(*(torch.split(x, rows) for x in (inputs_BT, asked_BT, targets_BT)), strict=True):
                with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                    logits_NW = self.model.logits_at(some_BT.to(device), where_BT.to(device))
                wanted_N = wanted_BT[where_BT].to(device)
                hits.append((logits_NW.argmax(dim=-1) == wanted_N).cpu())
                nats.append(torch.nn.functional.cross_entropy(logits_NW, wanted_N, reduction="none").double().cpu())
        finally:
            self.model.train(training)
        return torch.cat(hits), torch.cat(nats)


class Probe(Settings):
    """A probe and its settings: frozen, unknown settings refused, every field described."""

    name: ClassVar[str]             # set by @probe

    def check(self, recipe: Recipe) -> None:
        """Raise ProbeError when a model of this recipe cannot be probed so: known before anything is trained."""

    @abstractmethod
    def measure(self, subject: Subject) -> Finding:
        """Make the probe. Deterministic: the same weights give the same finding."""

    def must_fit(self, recipe: Recipe, length: int, vocab: int = 0) -> None:
        """Raise ProbeError when rows of `length` tokens, or a vocabulary of `vocab`, are more than the model has."""
        if length > LONGEST * recipe.train.seq_len:
            raise ProbeError(
                f"probe {self.name!r} may read at most {LONGEST} times the trained length, {LONGEST * recipe.train.seq_len} tokens, "
                f"but got rows of {length}; shorten them"
            )
        if vocab > recipe.model.vocab_size:
            raise ProbeError(
                f"probe {self.name!r} must fit the model's vocabulary of {recipe.model.vocab_size}, but needs {vocab} tokens; lower its vocab"
            )

    def must_be_text(self, recipe: Recipe) -> None:
        """Raise ProbeError when the run reads a synthetic task."""
        if is_task(recipe):
            raise ProbeError(f"probe {self.name!r} needs a run on text, but got data.source={recipe.data.source}; take 'task' or 'mqar'")


def is_task(recipe: Recipe) -> bool:
    """Whether the run reads a synthetic task."""
    return recipe.data.source.startswith("synthetic:")


def probe(name: str) -> Callable[[T], T]:
    """Register a probe under `name`."""

    def register(cls: T) -> T:
        if _probes.setdefault(name, cls) is not cls:
            raise ProbeError(f"probe names must be unique, but {name!r} is registered twice")
        cls.name = name
        return cls

    return register


def names() -> list[str]:
    """Registered names, sorted."""
    package = importlib.import_module("hymo.probes")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"hymo.probes.{module.name}")
    for entry in importlib.metadata.entry_points(group="hymo.probes"):
        entry.load()
    return sorted(_probes)


def open_probe(name: str, options: dict[str, Any] | None = None) -> Probe:
    """The probe of this name with these settings. Raises ProbeError."""
    known = names()
    if name not in _probes:
        raise ProbeError(f"a probe must be one of hymo's, but got {name!r}{did_you_mean(name, known)}")
    try:
        return _probes[name].model_validate(options or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        hint = did_you_mean(key, _probes[name].model_fields) if first["type"] == "extra_forbidden" else ""
        raise ProbeError(f"setting {key!r} of probe {name!r}: {first['msg']}, but got {first['input']!r}{hint}") from None


def planned(recipe: Recipe) -> list[Probe]:
    """The probes of `eval.probes`, each able to be made of a model of this recipe. Raises ProbeError before anything is trained."""
    found = [open_probe(name) for name in recipe.eval.probes]
    for each in found:
        each.check(recipe)
    return found
