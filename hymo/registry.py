"""Blocks by name: `@register("mixer", "gdn")` on a class, and everything else finds it there.

A block is discovered from three places: the `blocks` package beside hymo, entry points of the group `hymo.blocks`, and files that a recipe lists.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BeforeValidator

from hymo.block import KINDS, Block, BlockConfig, Kind, LayerInfo
from hymo.errors import RegistryError, did_you_mean

B = TypeVar("B", bound=type[Block])
_blocks: dict[tuple[Kind, str], type[Block]] = {}
_discovered = False


def register(kind: Kind, name: str) -> Callable[[B], B]:
    """Class decorator: make a Block known as `name` among blocks of `kind`."""
    if kind not in KINDS:
        raise RegistryError(f"a block's kind must be one of {', '.join(KINDS)}, but got {kind=}")

    def add(block: B) -> B:
        known = _blocks.get((kind, name))
        if known is not None and (known.__module__, known.__qualname__) != (block.__module__, block.__qualname__):
            raise RegistryError(f"a {kind} is registered once per name, but got {name!r} from {block.__module__} and {known.__module__}; rename one")
        declared = block.Config.model_fields["type"].default
        if declared != name:
            raise RegistryError(f"{block.__name__}.Config.type must default to its registered name {name!r}, but got {declared!r}")
        block.kind, block.name = kind, name
        _blocks[kind, name] = block
        return block

    return add


def get(kind: Kind, name: str) -> type[Block]:
    """The class registered under (kind, name). Raises RegistryError with a did-you-mean."""
    discover()
    if (kind, name) not in _blocks:
        elsewhere = [k for k in KINDS if (k, name) in _blocks]
        hint = f"; {name!r} is a {elsewhere[0]}" if elsewhere else did_you_mean(name, names(kind))
        raise RegistryError(f"{kind} must name a registered block, but got {name!r}{hint}")
    return _blocks[kind, name]


def names(kind: Kind) -> list[str]:
    """Registered names of one kind, sorted."""
    discover()
    return sorted(n for k, n in _blocks if k == kind)


def build(kind: Kind, config: BlockConfig, layer: LayerInfo) -> Block:
    """The block that `config` describes, at its place in the stack."""
    return get(kind, config.type)(config, layer)


def discover(files: Iterable[Path] = ()) -> None:
    """Import every block there is: shipped, by entry point, and the given files. Importing a file runs its code."""
    global _discovered
    if not _discovered:
        _discovered = True          # first, because blocks ask the registry while they are imported
        package = importlib.import_module("blocks")
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"blocks.{module.name}")
        for entry in importlib.metadata.entry_points(group="hymo.blocks"):
            entry.load()
    for file in files:
        path = Path(file).resolve()
        module_name = f"hymo_user_blocks.{path.stem}_{abs(hash(str(path))):x}"
        if module_name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise RegistryError(f"a recipe's block file must be a Python file that exists, but got {str(file)!r}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise


class BlockField(BeforeValidator):
    """Annotation of a config field that holds another block's config: `rope: Annotated[BlockConfig, BlockField("position")]`.

    Accepts a config, a mapping with `type` (or without, when `default` names one), or the bare name of a block.
    """

    def __init__(self, kind: Kind, default: str | None = None) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "default", default)

        def parse(raw: object) -> object:
            if raw is None or isinstance(raw, BlockConfig):
                return raw
            if isinstance(raw, str):
                raw = {"type": raw}
            if not isinstance(raw, dict):
                raise ValueError(f"a {kind} must be a mapping with `type`, or a name, but got {raw!r}")
            name = raw.get("type", default)
            if name is None:
                raise ValueError(f"a {kind} must say its `type`{did_you_mean('', names(kind))}")
            try:
                block = get(kind, str(name))
            except RegistryError as error:
                raise ValueError(str(error)) from None
            return block.Config.model_validate({**raw, "type": name})

        super().__init__(parse)
