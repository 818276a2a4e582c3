"""Every error a user can cause, in one small tree.

A message states what must hold, then `but got {x=}`, then what to do; it fits one line. The command line prints it without a traceback and
leaves with exit code 2. Anything that is not a HymoError is a fault of hymo's own.
"""

import difflib
from collections.abc import Iterable


class HymoError(Exception):
    """Base of every error that the user, not hymo, has to mend. One line: what a message quotes cannot break it or steer a terminal."""

    def __init__(self, message: str = "") -> None:
        super().__init__("".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message))


class RecipeError(HymoError):
    """A recipe, override or scale that does not describe a model. `where` is "file:line:column" when it is known."""

    def __init__(self, message: str, where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class PatternError(RecipeError):
    """A layer pattern that cannot be read."""


class RegistryError(HymoError):
    """A block that is not registered, or registered twice."""


class NotOffered(HymoError):
    """A block is asked for what its class does not offer: to be counted, to decode, to predict."""


class KernelUnavailable(HymoError):
    """A kernel was asked for by name and cannot run here."""


class OperandError(HymoError, ValueError):
    """Operands whose shapes, dtypes or devices do not fit together."""


class DataError(HymoError):
    """A data source or tokenizer that cannot be read, or changed since the run began."""


class BudgetError(HymoError):
    """The machine's memory or time is too small for what was asked."""


class CheckpointError(HymoError):
    """A checkpoint that is missing, damaged, or belongs to another recipe."""


class MissingExtra(HymoError):
    """An optional dependency that this feature needs is not installed."""


class ProbeError(HymoError):
    """A probe that needs more context, vocabulary or text than the run it is asked of has."""


class AblationError(HymoError):
    """An experiment that is not well posed: its arms, its matching or its statistics."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """'; did you mean 'mla'?' when a choice is close, else '; choose from …'. Empty when there is nothing to choose from."""
    options = sorted(map(str, choices))
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose from {', '.join(options)}" if options else ""
