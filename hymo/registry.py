"""Blocks by name: `@register("mixer", "gdn")` on a class, and everything else finds it there.

A block is discovered from three places: the `blocks` package beside hymo, entry points of the group `hymo.blocks`, and files that a recipe lists.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from hymo.block import KINDS, Block, BlockConfig, Kind, LayerInfo
from hymo.errors import RegistryError, did_you_mean

B = TypeVar("B", bound=type[Block])
_blocks: dict[tuple[Kind, str], type[Block]] = {}
_discovered = False
_listeners: list[set[tuple[Kind, str]]] = []


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
    for found in _listeners:
        found.add((kind, name))
    return _blocks[kind, name]


def names(kind: Kind) -> list[str]:
    """Registered names of one kind, sorted."""
    discover()
    return sorted(n for k, n in _blocks if k == kind)


def build(kind: Kind, config: BlockConfig, layer: LayerInfo) -> Block:
    """The block that `config` describes, at its place in the stack."""
    return get(kind, config.type)(config, layer)


@contextlib.contextmanager
def asked() -> Iterator[set[tuple[Kind, str]]]:
    """The blocks that are asked for inside: what a model needs, parts of parts included."""
    found: set[tuple[Kind, str]] = set()
    _listeners.append(found)
    try:
        yield found
    finally:
        _listeners.pop()


def seal() -> None:
    """Take the blocks that are imported by now for all there are. An exported model brings its own, and looks nowhere else."""
    global _discovered
    _discovered = True


def discover(files: Iterable[Path] = ()) -> list[Path]:
    """Import every block there is: shipped, by entry point, and the given files. Importing a file runs its code.

    Returns those of `files` that were not imported before. Raises RegistryError, with file and line, for code that does not import.
    """
    global _discovered
    if not _discovered:
        _discovered = True          # first, because blocks ask the registry while they are imported
        try:
            _import_shipped()
        except BaseException:
            _discovered = False     # the next call says again what is wrong, instead of missing a block
            raise
    return [file for file in files if _import_file(Path(file))]


def _import_shipped() -> None:
    package = importlib.import_module("blocks")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            with _faults_of(Path(package.__path__[0]) / f"{module.name}.py"):
                importlib.import_module(f"blocks.{module.name}")
    for entry in importlib.metadata.entry_points(group="hymo.blocks"):
        with _faults_of(f"entry point {entry.name} = {entry.value}"):
            entry.load()


def _import_file(file: Path) -> bool:
    """Run a user's block file, once per process; True when it ran now."""
    path = file.resolve()
    name = f"hymo_user_blocks.{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return False
    if path.suffix != ".py" or not path.is_file():
        raise RegistryError(f"a recipe's block file must be a Python file that exists, but got {str(file)!r}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    known = dict(_blocks)
    sys.modules[name] = module
    try:
        with _faults_of(path):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        _blocks.clear()
        _blocks.update(known)       # a file that failed halfway leaves nothing behind
        raise
    return True


@contextlib.contextmanager
def _faults_of(source: Path | str) -> Iterator[None]:
    """Anything wrong with a block's code is its author's to mend: one RegistryError with file and line."""
    try:
        yield
    except RegistryError:
        raise
    except SyntaxError as error:
        raise RegistryError(f"a block file must be valid Python, but {error.filename}:{error.lineno} has {error.msg!r}") from error
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(source)]
        place = f"{source}:{lines[-1]}" if lines else str(source)
        reason = " ".join([f"{type(error).__name__}:", *str(error).split()])
        raise RegistryError(f"a block file must import without error, but {place} raised {reason}") from error


@dataclass(frozen=True)
class BlockField:
    """Annotation of a config field that holds another block's config: `rope: Annotated[BlockConfig, BlockField("position")]`.

    Accepts a config, a mapping with `type` (or without, when `default` names one), or the bare name of a block.
    """

    kind: Kind
    default: str | None = None

    def parse(self, raw: object) -> object:
        """The config that `raw` describes. Raises ValueError (pydantic's ValidationError included), which pydantic reports with its place."""
        if raw is None or isinstance(raw, BlockConfig):
            return raw
        if isinstance(raw, str):
            raw = {"type": raw}
        if not isinstance(raw, dict):
            raise ValueError(f"a {self.kind} must be a mapping with `type`, or a name, but got {raw!r}")
        name = raw.get("type", self.default)
        if name is None:
            raise ValueError(f"a {self.kind} must say its `type`{did_you_mean('', names(self.kind))}")
        try:
            block = get(self.kind, str(name))
        except RegistryError as error:
            raise ValueError(str(error)) from None
        return block.Config.model_validate({**raw, "type": name})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # serialised as it is: all fields of the block's own Config, not just those of BlockConfig
        return core_schema.no_info_before_validator_function(self.parse, handler(source), serialization=core_schema.simple_ser_schema("any"))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        block: JsonSchemaValue = {"x-block": self.kind}     # hymo.recipe.schema puts the union of all blocks of the kind here
        inner = schema.get("schema")
        nullable = isinstance(inner, dict) and inner.get("type") == "nullable"
        return {"anyOf": [block, {"type": "null"}]} if nullable else block
