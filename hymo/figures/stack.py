"""The resolved stack as a page that needs nothing beside it: layers, what overrides changed, and what each layer costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hymo.errors import HymoError
from hymo.figures.style import COLOURS
from hymo.files import write_whole
from hymo.units import in_bytes, si

if TYPE_CHECKING:
    from hymo.block import BlockConfig
    from hymo.cost import Cost, LayerCost
    from hymo.recipe import Recipe, ResolvedLayer
    from hymo.recipe.tree import ModelConfig


@dataclass(frozen=True)
class Drawn:
    """One layer on the page."""

    index: int
    name: str
    mixer: BlockConfig
    ffn: BlockConfig | None
    cost: LayerCost
    overridden: tuple[str, ...]
    changes: list[str]


def write_page(recipe: Recipe, path: Path) -> None:
    """Write the page to `path`, whole or not at all."""
    if not path.parent.is_dir():
        raise HymoError(f"a page must be written to a folder that exists, but got {str(path)!r}; make {str(path.parent)!r} first")
    write_whole(path, render(recipe))


def render(recipe: Recipe) -> str:
    """The page as HTML text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from hymo.cost import count
    from hymo.recipe import resolve_stack

    cost = count(recipe)
    layers = [drawn(layer, price, recipe.model) for layer, price in zip(resolve_stack(recipe.model), cost.layers, strict=True)]
    environment = Environment(
        loader=PackageLoader("hymo.figures", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"si": si, "in_bytes": in_bytes, "settings": settings}
    return environment.get_template("stack.html").render(
        recipe=recipe,
        model=recipe.model,
        cost=cost,
        layers=layers,
        most=most(layers),
        colours=colours([*(layer.mixer for layer in layers), *(layer.ffn for layer in layers if layer.ffn)]),
        train_per_forward=cost.flops_per_token_train / cost.flops_per_token_forward,
        outside=outside(cost, layers),
    )


def drawn(layer: ResolvedLayer, price: LayerCost, model: ModelConfig) -> Drawn:
    """What the page says of a layer."""
    written = model.layers[layer.info.symbol]
    changed = [*changes("mixer", written.mixer, layer.mixer), *changes("ffn", written.ffn, layer.ffn)]
    ffn = None if layer.ffn.type == "none" else layer.ffn
    return Drawn(layer.info.index, layer.info.name, layer.mixer, ffn, price, layer.overridden, changed)


def most(layers: Iterable[Drawn]) -> dict[str, float]:
    """The largest layer by each measure: full bars."""
    costs = [layer.cost for layer in layers]
    return {
        "stored": max(cost.stored for cost in costs),
        "flops": max(cost.flops_per_token_forward for cost in costs),
        "state": max(1, *(cost.cache_bytes + cost.state_bytes for cost in costs)),
    }


def outside(cost: Cost, layers: Iterable[Drawn]) -> dict[str, Any]:
    """What the embedding, the heads and the last norm cost: everything that is in no layer."""
    costs = [layer.cost for layer in layers]
    return {
        "active": cost.active - sum(one.active for one in costs),
        "stored": cost.stored - sum(one.stored for one in costs),
        "flops": cost.flops_per_token_forward - sum(one.flops_per_token_forward for one in costs),
    }


def colours(blocks: Iterable[BlockConfig]) -> dict[str, str]:
    """A colour for each kind of block, in the order in which they appear."""
    kinds = list(dict.fromkeys(block.type for block in blocks))
    return {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}


def settings(config: BlockConfig) -> str:
    """`mla(n_heads=16, …)`: a block and every setting of it."""
    return f"{config.type}({', '.join(f'{key}={value}' for key, value in config.model_dump(exclude={'type'}, exclude_none=True).items())})"


def changes(where: str, written: BlockConfig, resolved: BlockConfig) -> list[str]:
    """['mixer.rope=none']: what differs from the layer's own symbol."""
    if written.type != resolved.type:
        return [f"{where}={resolved.type}"]
    old, new = written.model_dump(), resolved.model_dump()
    return [f"{where}.{key}={value['type'] if isinstance(value, dict) else value}" for key, value in new.items() if value != old[key]]
