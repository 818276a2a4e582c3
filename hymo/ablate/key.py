"""The name of a run's result: a digest of everything that decides it, and of nothing else.

    recipe        fingerprint of the resolved recipe, seed included
    init_seed     seed of the initial weights (an A/A arm's differs from its data's)
    data          fingerprint of the data
    source        the files of the blocks that the recipe uses, and those of hymo that compute: model, ops, data, train, probes
    probes        what the trained model is asked, and with which settings
    where         torch and Python versions, device, compute type, threads, micro-batch, compile

A run whose key is in the store is never computed again. One changed block leaves the runs of every recipe that does not use it where they are.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hymo.block import KINDS, BlockConfig
from hymo.recipe import Recipe, fingerprint, resolve_stack
from hymo.registry import get, names

PACKAGE = Path(__file__).resolve().parents[1]
COMPUTES = ("block.py", "model.py", "init.py", "evaluate.py", "ops", "data", "train", "probes")


def ingredients(
    recipe: Recipe, init_seed: int, data_fingerprint: str, device: str, threads: int, probes: Mapping[str, dict[str, Any]]
) -> dict[str, str]:
    """What a run's result depends on, by name, as text. `recipe` holds the run's own seed; `device` is the resolved one."""
    import torch

    kind = torch.device(device).type
    return {
        "recipe": fingerprint(recipe),
        "init_seed": str(init_seed),
        "data": data_fingerprint,
        **{f"block {name}": digest for name, digest in block_sources(recipe).items()},
        "probes": json.dumps(probes, sort_keys=True),
        "source": source_digest(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(device) if kind == "cuda" else kind,
        "dtype": recipe.train.dtype,
        "threads": str(threads),
        "micro_batch": str(recipe.train.micro_batch),
        "compile": str(recipe.train.compile),
        "checkpoint_activations": str(recipe.train.checkpoint_activations),
    }


def key(parts: dict[str, str]) -> str:
    """16 hexadecimal digits of the ingredients."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def block_sources(recipe: Recipe) -> dict[str, str]:
    """Digest of the source file of every block that the recipe builds, nested ones included, by registered name."""
    model = recipe.model
    configs: list[BlockConfig] = [model.rope, model.mtp]
    for layer in resolve_stack(model):
        configs += [layer.mixer, layer.ffn]
    found = {(kind, type_) for config in configs for type_ in _types(config.model_dump()) for kind in KINDS if type_ in names(kind)}
    return {name: _digest([Path(inspect.getfile(get(kind, name)))]) for kind, name in sorted(found)}


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Digest of hymo's own files that compute a result."""
    roots = [PACKAGE / part for part in COMPUTES]
    return _digest(path for root in roots for path in (sorted(root.rglob("*.py")) if root.is_dir() else [root]))


def _types(value: Any) -> Iterator[str]:
    """Every `type` in a config, wherever it is nested."""
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value["type"]
        for inner in value.values():
            yield from _types(inner)


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {_content(path)}\n".encode())
    return digest.hexdigest()[:16]


@cache
def _content(path: Path) -> str:
    """Digest of a file as this process first saw it, which is as it imported it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
