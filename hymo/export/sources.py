"""hymo's own sources, as far as one model needs them, in the form in which transformers loads code from a model's folder.

transformers copies a modelling file and what it imports as `from .name import …`, all of it from one flat folder; and it refuses imports of packages
that are not installed. So hymo/ops/norm.py becomes hymo_ops_norm.py, and every import of hymo a relative one. Nothing else changes.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import hymo
from hymo.errors import HymoError

ROOT = Path(hymo.__file__).resolve().parents[1]
OURS = ("hymo", "blocks")
OPERATORS = re.compile(r'"hymo::')      # names of operators are global to torch: a copy must not take those of an installed hymo


@dataclass(frozen=True)
class Import:
    """One statement `from hymo.… import …`: where it stands, and the modules that it needs."""

    first: int              # line, from 0
    last: int
    lines: list[str]        # what takes its place
    modules: list[str]


def bundle(roots: Iterable[str], files: Mapping[str, Path] | None = None) -> dict[str, str]:
    """{file name: text} of the modules `roots` and of everything that they import from hymo. `files` says where modules lie that are none of hymo's.

    Raises HymoError for a statement that has no relative form.
    """
    known = dict(files or {})
    waiting, texts = list(roots), {}
    while waiting:
        module = waiting.pop()
        if module in texts:
            continue
        text = (known.get(module) or path_of(module)).read_text(encoding="utf-8")
        imports = list(imports_of(text, module))
        texts[module] = rewritten(text, imports)
        waiting += [needed for one in imports for needed in one.modules]
    tag = hashlib.sha256("".join(texts[module] for module in sorted(texts)).encode()).hexdigest()[:8]
    return {f"{flat(module)}.py": OPERATORS.sub(f'"hymo_{tag}::', texts[module]) for module in sorted(texts)}


def flat(module: str) -> str:
    """hymo.ops.norm -> hymo_ops_norm; modelling files keep the names by which transformers knows such files."""
    return module.rpartition(".")[2] if module.startswith("hymo.export.") else module.replace(".", "_")


def path_of(module: str) -> Path:
    """The file of a module of ours."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def is_module(name: str) -> bool:
    """Whether one of our modules has this name."""
    return name.partition(".")[0] in OURS and path_of(name).is_file()


def imports_of(text: str, module: str) -> Iterator[Import]:
    """Every import of ours in a file, those for type checkers apart, which never run."""
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] in OURS for alias in node.names):
            raise HymoError(f"to be exported, {module} must import as `from hymo.… import …`, but got {ast.unparse(node)!r} at line {node.lineno}")
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            modules, lines = relative(node)
            yield Import(node.lineno - 1, node.end_lineno or node.lineno, [" " * node.col_offset + line for line in lines], modules)
        waiting += ast.iter_child_nodes(node)


def relative(node: ast.ImportFrom) -> tuple[list[str], list[str]]:
    """The modules that a statement needs, and the lines that import the same from files beside."""
    assert node.module is not None
    names: dict[str, list[str]] = {}
    lines = []
    for alias in node.names:
        inner = f"{node.module}.{alias.name}"
        if is_module(inner):
            # The second line is the one by which transformers knows that the file is needed.
            names.setdefault(inner, [])
            lines += [f"from . import {flat(inner)} as {alias.asname or alias.name}", f"from .{flat(inner)} import __name__ as _"]
        else:
            home = hymo._HOMES[alias.name] if node.module == "hymo" else node.module
            names.setdefault(home, []).append(f"{alias.name} as {alias.asname}" if alias.asname else alias.name)
    lines += [f"from .{flat(home)} import {', '.join(wanted)}" for home, wanted in names.items() if wanted]
    return list(names), lines


def rewritten(text: str, imports: Iterable[Import]) -> str:
    """The text with each import in its relative form."""
    lines = text.splitlines()
    for one in sorted(imports, key=lambda one: one.first, reverse=True):
        lines[one.first : one.last] = one.lines
    return "\n".join(lines) + "\n"
