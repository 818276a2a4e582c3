"""YAML 1.2 in, plain Python values out, and for every key the place where it stands. Nothing is ever executed.

The reader walks the parser's events itself, so that what a recipe has no use for is refused before it can cost anything: anchors and aliases
(the YAML bomb), tags (`!!python/…`), deep nesting, duplicate keys, several documents, large files, NaN and infinity.

Scalars follow the core schema of YAML 1.2: 1e-3 is a number, `on` and 1:20 are text.
"""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from hymo.errors import RecipeError
from hymo.recipe.merge import Keys

# A recipe with every default written out is some 200 values in 5 kB. The limits keep a hostile one under a second.
MAX_BYTES = 64 * 1024
MAX_VALUES = 4096       # keys and values
MAX_DEPTH = 24
MAX_DIGITS = 32         # characters of a number
MAX_KEY = 128           # characters of a key or a tag

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

_CROWD = re.compile(rf"[\[{{]{{{MAX_DEPTH + 1}}}")       # the parser takes a second for a thousand brackets that are still open

_CONTENT = (ScalarEvent, AliasEvent, MappingStartEvent, MappingEndEvent, SequenceStartEvent, SequenceEndEvent, DocumentStartEvent)


@dataclass
class Document:
    """What was read, and where: `places` maps the keys that lead to a value to "file:line:column"."""

    value: Any
    places: dict[Keys, str] = field(default_factory=dict)


def read_file(path: Path) -> Document:
    """The YAML document in `path`. Raises RecipeError, with the place, for anything that is not a small plain document."""
    if not path.is_file():
        raise RecipeError(f"a recipe must be a file that exists, but got {str(path)!r}")
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"a recipe must be readable, but got {error.strerror} for {str(path)!r}") from None
    if len(raw) > MAX_BYTES:
        raise RecipeError(f"a recipe must be at most {MAX_BYTES} bytes long, but got more", str(path))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"a recipe must be UTF-8 text, but got byte 0x{raw[error.start]:02x}", f"{path}:{line}") from None
    return read_text(text, str(path))


def read_text(text: str, name: str | None) -> Document:
    """The YAML document in `text`. `name` opens every place ("name:line:column"); None leaves the places out (an override has no lines).

    A command that weighs scales and arms reads the same recipe dozens of times, a tenth of a second each: a text is parsed once.
    """
    return deepcopy(_parsed(text, name))


@lru_cache(maxsize=64)
def _parsed(text: str, name: str | None) -> Document:
    return _Reader(text, name).read()


def scalar(text: str) -> Any:
    """A plain (unquoted) scalar by the core schema of YAML 1.2. Raises ValueError for NaN, infinity and numbers of absurd length."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"a number must be finite, but got {text}")
    if _INT.fullmatch(text) or _BASED.fullmatch(text) or _FLOAT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ValueError(f"a number must have at most {MAX_DIGITS} characters, but got {len(text)}")
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _INT.fullmatch(text):
            return int(text)
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError(f"a number must be finite, but got {text}")
        return number
    return text


class _Reader:
    def __init__(self, text: str, name: str | None) -> None:
        self.text = text
        self.name = name
        self.document = Document(None)
        self.values = 0

    def read(self) -> Document:
        if crowd := _CROWD.search(self.text):
            line, begin = self.text.count("\n", 0, crowd.start()) + 1, self.text.rfind("\n", 0, crowd.start())
            where = f"{self.name}:{line}:{crowd.start() - begin}" if self.name else None
            raise RecipeError(f"a recipe must be nested at most {MAX_DEPTH} levels deep, but got more", where)
        try:
            self.events = self._parser()
            first = next(self.events, None)
            if first is not None:
                self.document.value = self._value(first, ())
            extra = next(self.events, None)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = " ".join(str(error.problem or error.context).split())
            if "alias" in problem or "anchor" in problem:
                problem += "; `*` and `&` at the start of a value have a meaning of their own in YAML: put the text in quotes"
            raise RecipeError(f"a recipe must be YAML 1.2, but {problem}", self._place(mark)) from None
        except (YAMLError, ValueError) as error:
            raise RecipeError(f"a recipe must be YAML 1.2, but {' '.join(str(error).split())}", self.name) from None
        if extra is not None:
            raise RecipeError("a recipe must be one YAML document, but got a second one", self._place(extra.start_mark))
        return self.document

    def _parser(self) -> Any:
        """Events that carry content; the rest are dropped."""
        documents = 0
        for event in YAML(typ="safe", pure=True).parse(self.text):
            documents += isinstance(event, DocumentStartEvent)
            if isinstance(event, DocumentStartEvent) and documents == 1:
                continue
            if isinstance(event, _CONTENT):
                yield event

    def _value(self, event: Event, keys: Keys) -> Any:
        self._refuse_tricks(event, keys)
        self.document.places.setdefault(keys, self._place(event.start_mark) or "")
        if isinstance(event, ScalarEvent):
            return self._scalar(event, keys)
        if isinstance(event, SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self.events), SequenceEndEvent):
                items.append(self._value(event, (*keys, str(len(items)))))
            return items
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self._key(event, keys)
            if key in mapping:
                raise RecipeError(f"a key must be given once, but got {key!r} twice", self._place(event.start_mark))
            self.document.places[*keys, key] = self._place(event.start_mark) or ""
            mapping[key] = self._value(next(self.events), (*keys, key))
        return mapping

    def _key(self, event: Event, keys: Keys) -> str:
        self._refuse_tricks(event, keys)
        if not isinstance(event, ScalarEvent):
            raise RecipeError("a key must be a word or a number, but got a list or a mapping", self._place(event.start_mark))
        if len(event.value) > MAX_KEY:
            raise RecipeError(f"a key must be at most {MAX_KEY} characters long, but got {len(event.value)}", self._place(event.start_mark))
        return str(event.value)

    def _scalar(self, event: ScalarEvent, keys: Keys) -> Any:
        if keys[-1:] == ("pattern",):
            self._refuse_hidden_repeat(event)
        if not event.implicit[0]:       # quoted
            return event.value
        try:
            return scalar(event.value)
        except ValueError as error:
            raise RecipeError(f"{'.'.join(keys)}: {error}" if keys else str(error), self._place(event.start_mark)) from None

    def _refuse_tricks(self, event: Event, keys: Keys) -> None:
        where = self._place(event.start_mark)
        self.values += 1
        if self.values > MAX_VALUES:
            raise RecipeError(f"a recipe must hold at most {MAX_VALUES} keys and values, but got more", where)
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if isinstance(event, AliasEvent):
            raise RecipeError(f"a recipe must hold no YAML alias, but got '*{anchor}'; text that starts with `*` must be in quotes", where)
        if anchor is not None:
            raise RecipeError(f"a recipe must hold no YAML anchor, but got '&{anchor}'; use `extends` to share settings", where)
        if tag is not None:
            raise RecipeError(f"a recipe must hold no YAML tag, but got {str(tag)[:MAX_KEY]!r}; write the plain value", where)
        if len(keys) > MAX_DEPTH:
            raise RecipeError(f"a recipe must be nested at most {MAX_DEPTH} levels deep, but got more", where)

    def _refuse_hidden_repeat(self, event: ScalarEvent) -> None:
        """`pattern: M #8` reads as `M`, since ` #` opens a comment: a model of one layer instead of eight."""
        rest = self.text[event.end_mark.index :].split("\n", 1)[0].strip()
        if re.fullmatch(r"#\s*[0-9]+", rest):
            meant = f"{event.value}*{rest.lstrip('# ')}"
            raise RecipeError(f"{rest!r} after the pattern is a comment in YAML; a repeat is written {meant}", self._place(event.start_mark))

    def _place(self, mark: Any) -> str | None:
        if mark is None or self.name is None:
            return self.name
        return f"{self.name}:{mark.line + 1}:{mark.column + 1}"
