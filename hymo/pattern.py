"""Layer patterns: "MGGG*8" -> ["M", "G", "G", "G", "M", …].

    pattern := term (SPACE+ term)*
    term    := (run | group) ["*" N]         the repeat belongs to the whole run or group before it
    run     := SYMBOL+                       a symbol is one ASCII letter
    group   := "(" pattern ")"

So "MGGG*8" is 32 layers, "G MGGG*7 MGG" is 32 layers, "(MG GG*3)*4" is 32 layers. Terms are always separated by spaces: what `G(MG)*2` or
`MG*2G` repeats should not have to be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from hymo.errors import PatternError, did_you_mean

MAX_LAYERS = 1024       # a stack deeper than this is a slip of the hand, and is refused before it is written out
MAX_LENGTH = 4096       # characters in a pattern
MAX_GROUPS = 16         # groups inside groups

_TOKEN = re.compile(r"(?P<run>[A-Za-z]+)|(?P<space>\s+)|(?P<star>\*)|(?P<number>[0-9]+)|(?P<open>\()|(?P<close>\))")


def parse(pattern: str) -> list[str]:
    """The layer symbols that `pattern` stands for, first layer first. Pure: knows no layers.

    Raises PatternError when the grammar is broken (the message repeats the pattern with `^` before the fault) or more than MAX_LAYERS
    layers are asked for (nothing is written out before that is known).
    """
    if not isinstance(pattern, str):
        raise PatternError(f"pattern must be text such as MGGG*8, but got {pattern=}")
    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"pattern must be at most {MAX_LENGTH} characters long, but got {len(pattern)}; use repeats")
    return _Reader(pattern).read()


def check_symbols(pattern: str, known: Collection[str]) -> None:
    """Raise PatternError, with a caret and a did-you-mean, unless every symbol of `pattern` is one of `known`."""
    for match in re.finditer("[A-Za-z]", pattern):
        if match[0] not in known:
            swapped = match[0].swapcase()
            hint = f"; did you mean {swapped!r}?" if swapped in known else did_you_mean(match[0], known)
            raise _fault(pattern, match.start(), f"every symbol of the pattern must be one of model.layers, but got {match[0]!r}{hint}")


def render(symbols: Sequence[str]) -> str:
    """A short pattern for `symbols`: parse(render(symbols)) == list(symbols). Greedy: the longest repeat at each place."""
    terms: list[str] = []
    run = ""
    at = 0
    while at < len(symbols):
        period, times = _longest_repeat(symbols, at)
        if times < 2:
            run += symbols[at]
            at += 1
            continue
        terms += [run] if run else []
        run = ""
        terms.append(f"{''.join(symbols[at : at + period])}*{times}")
        at += period * times
    return " ".join([*terms, run] if run else terms)


def _longest_repeat(symbols: Sequence[str], at: int, longest_period: int = 16) -> tuple[int, int]:
    """(period, times) of the repeat that starts at `at` and covers most layers; the shorter period when two cover as many."""
    best = (1, 1)
    for period in range(1, min(longest_period, (len(symbols) - at) // 2) + 1):
        unit = list(symbols[at : at + period])
        times = 1
        while list(symbols[at + times * period : at + (times + 1) * period]) == unit:
            times += 1
        if times > 1 and period * times > max(best[0] * best[1], 2):
            best = (period, times)
    return best


def _fault(pattern: str, at: int, message: str) -> PatternError:
    shown = f"{pattern[max(0, at - 40):at]}^{pattern[at:at + 20]}"
    return PatternError(f"{message}, at ^ in {shown!r}")


class _Reader:
    """One pass over the tokens. Counts layers before it writes them, so `MG*1000000000` costs nothing."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.tokens = list(self._tokens())
        self.at = 0

    def read(self) -> list[str]:
        symbols = self._terms(depth=0)
        kind, _, start = self.tokens[self.at]
        if kind == "close":
            raise self._fault(start, "`)` must close a `(`")
        return symbols

    def _tokens(self) -> Iterable[tuple[str, str, int]]:
        at = 0
        while at < len(self.pattern):
            match = _TOKEN.match(self.pattern, at)
            if match is None:
                hint = "; repeats are written M*8" if self.pattern[at] in "#x×^" else ""
                raise self._fault(at, f"a pattern holds letters, `*N`, spaces and brackets, but got {self.pattern[at]!r}{hint}")
            yield str(match.lastgroup), match[0], at
            at = match.end()
        yield "end", "", at

    def _terms(self, depth: int) -> list[str]:
        symbols: list[str] = []
        self._skip_spaces()
        begin = self.tokens[self.at][2]
        while self.tokens[self.at][0] not in ("close", "end"):
            symbols += self._term(depth)
            if len(symbols) > MAX_LAYERS:
                raise self._too_many(len(symbols), begin)
            kind, text, start = self.tokens[self.at]
            if kind not in ("space", "close", "end"):
                raise self._fault(start, f"a space must separate this from the term before it, but got {text!r}")
            self._skip_spaces()
            if self.tokens[self.at][0] == "star":
                raise self._fault(self.tokens[self.at][2], "`*N` must follow its run without a space, as in MGGG*8")
        if not symbols:
            raise self._fault(begin, "a layer symbol is expected")
        return symbols

    def _term(self, depth: int) -> list[str]:
        kind, text, start = self.tokens[self.at]
        self.at += 1
        if kind == "run":
            symbols = list(text)
        elif kind == "open":
            if depth == MAX_GROUPS:
                raise self._fault(start, f"groups must be nested at most {MAX_GROUPS} deep")
            symbols = self._terms(depth + 1)
            if self.tokens[self.at][0] != "close":
                raise self._fault(start, "`(` must be closed")
            self.at += 1
        elif kind == "number":
            raise self._fault(start, f"a number must follow `*`, but got {text!r}; repeats are written MGGG*8")
        else:
            raise self._fault(start, f"a layer symbol or a group is expected, but got {text!r}; repeats are written MGGG*8")
        if self.tokens[self.at][0] != "star":
            return symbols
        self.at += 1
        kind, text, start = self.tokens[self.at]
        if kind != "number":
            raise self._fault(start, "`*` must be followed at once by the number of repeats, as in MGGG*8")
        times = int(text) if len(text) < 10 else 10**9
        if times < 1:
            raise self._fault(start, f"a repeat must be at least 1, but got {text}")
        if times * len(symbols) > MAX_LAYERS:
            raise self._too_many(times * len(symbols), start)
        self.at += 1
        return symbols * times

    def _skip_spaces(self) -> None:
        while self.tokens[self.at][0] == "space":
            self.at += 1

    def _too_many(self, layers: int, at: int) -> PatternError:
        return self._fault(at, f"a stack must have at most {MAX_LAYERS} layers, but got {layers} or more")

    def _fault(self, at: int, message: str) -> PatternError:
        return _fault(self.pattern, at, message)
