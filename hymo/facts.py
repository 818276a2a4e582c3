"""What a run says of itself before its first step: the recipe as parameters, its cost as numbers, its place and its data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hymo.environment import environment

if TYPE_CHECKING:
    from hymo.recipe import Recipe
    from hymo.train.tracker import RunStart

PARAM_LIMIT, DIGEST_LIMIT = 6000, 36  # what MLflow keeps of a parameter and of a dataset's digest; recipe.yaml holds everything


@dataclass(frozen=True)
class Facts:
    """params and tags are text, metrics are numbers of the whole run, dataset has the fields of MLflow's Dataset."""

    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    dataset: dict[str, str] | None = None


def describe(recipe: Recipe, info: RunStart) -> Facts:
    """Everything about a run that is known when it starts."""
    from hymo.cost import count

    cost = count(recipe)
    source = recipe.data.source
    return Facts(
        params=dict(flatten(recipe)),
        tags={
            "mlflow.note.content": f"`{recipe.model.pattern}`, {cost.active:,} parameters active of {cost.stored:,}, {info.steps:,} steps of "
            f"{recipe.train.tokens_per_step:,} tokens from {source}, seed {recipe.run.seed}.",
            **{f"env.{name}": value for name, value in environment().items()},
            **{f"run.{name}": str(value) for name, value in info.facts.items()},
        },
        metrics={
            "cost/params_active": cost.active,
            "cost/params_stored": cost.stored,
            "cost/flops_per_token_train": cost.flops_per_token_train,
            "cost/state_bytes": cost.state_bytes,
        },
        dataset={
            "name": source,
            "digest": str(info.data["fingerprint"])[:DIGEST_LIMIT],
            "source_type": "huggingface" if source.startswith("hf:") else "local",
            "source": json.dumps({"source": source, "tokenizer": recipe.data.tokenizer}),
            "profile": json.dumps(info.data),
        },
    )


def flatten(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """('model.d_model', '896'), …: the recipe's leaves as text, lists as JSON."""
    from hymo.recipe import to_dict

    def leaves(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, dict) and value:
            for key, below in value.items():
                yield from leaves(f"{prefix}.{key}" if prefix else str(key), below)
        elif value is not None:
            yield prefix.replace(",", "/"), (value if isinstance(value, str) else json.dumps(value))[:PARAM_LIMIT]

    return leaves("", to_dict(recipe))
