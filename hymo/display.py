"""What a person sees of a run: a live panel on a terminal, a line now and then elsewhere, JSON lines for a machine.

Called from the training thread once a step. The panel draws in a thread of its own, four times a second, whatever the speed of the steps.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from hymo.units import in_time, si

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hymo.train import StepInfo

BARS = "▁▂▃▄▅▆▇█"
LINES_PER_RUN = 20


class Display(ABC):
    """Shows the steps of a run, while it is entered."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    @abstractmethod
    def say(self, words: str) -> None:
        """Something that is no step: what was chosen, how it ended."""

    @abstractmethod
    def step(self, info: StepInfo) -> None:
        """One more step is done."""

    @abstractmethod
    def validated(self, step: int, values: Mapping[str, float]) -> None:
        """The model after this step was tried on held-out text."""


def sparkline(values: Sequence[float], width: int) -> str:
    """The last value of each of at most `width` equal stretches, as bars between the least and the greatest."""
    if not values:
        return ""
    count = min(width, len(values))
    shown = [values[(i + 1) * len(values) // count - 1] for i in range(count)]
    finite = [value for value in shown if abs(value) < float("inf")]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] if abs(value) < float("inf") else "×" for value in shown)


def line(info: StepInfo, left: float | None) -> str:
    """One step in one line."""
    values = info.metrics
    parts = [f"step {info.step:,}/{info.steps:,}", f"loss {info.loss:.4f}"]
    if "speed/tokens_per_s" in values:
        parts.append(si(values["speed/tokens_per_s"], "tokens/s"))
    if "speed/mfu" in values:
        parts.append(f"MFU {values['speed/mfu']:.1%}")
    if left is not None and info.step < info.steps:
        parts.append(f"{in_time(left)} left")
    return "  ".join(parts)


def validation(values: Mapping[str, float]) -> str:
    """The held-out loss in words."""
    return f"val loss {values['val/loss']:.4f}" + (f" ({values['val/bpb']:.3f} bits per byte)" if "val/bpb" in values else "")


def finite(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is null, however deep it stands."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def put(words: str, stream: IO[str]) -> None:
    """Print a line. A reader that has left ends the program, as everywhere; a disk that is full for now (`hymo run > log`) does not end a run."""
    try:
        print(words, file=stream, flush=True)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise


class Clock:
    """Time left, from the pace so far; the first step, which compiles and warms up, counts for nothing."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def left(self, step: int, steps: int) -> float | None:
        """Seconds, or None after the first step only."""
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
        done = step - self._first[0]
        return (now - self._first[1]) / done * (steps - step) if done else None


class Lines(Display):
    """Some twenty plain lines in a run, and every validation."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stdout
        self.clock = Clock()
        self.shown = -1

    def say(self, words: str) -> None:
        put(words, self.stream)

    def step(self, info: StepInfo) -> None:
        left = self.clock.left(info.step, info.steps)
        part = info.step * LINES_PER_RUN // info.steps
        if part > self.shown:
            self.shown = part
            self.say(line(info, left))

    def validated(self, step: int, values: Mapping[str, float]) -> None:
        self.say(f"step {step:,}  {validation(values)}")


class Silent(Display):
    """Nothing: for every process of a run but the first."""

    def say(self, words: str) -> None: ...

    def step(self, info: StepInfo) -> None: ...

    def validated(self, step: int, values: Mapping[str, float]) -> None: ...


class JsonLines(Display):
    """Every step as one JSON object; words are objects too."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stdout

    def say(self, words: str) -> None:
        self._print({"message": words})

    def step(self, info: StepInfo) -> None:
        self._print({"step": info.step, "steps": info.steps, **finite(info.metrics)})

    def validated(self, step: int, values: Mapping[str, float]) -> None:
        self._print({"step": step, **finite(values)})

    def _print(self, value: dict[str, object]) -> None:
        put(json.dumps(value, ensure_ascii=False, allow_nan=False), self.stream)


class Live(Display):
    """A panel that redraws in place: progress, the loss as a sparkline, speed, time left."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self.console, self.clock = console, Clock()
        self.losses: list[float] = []
        self.info: StepInfo | None = None
        self.left: float | None = None
        self.validation = ""
        self._live = RichLive(console=console, get_renderable=self._draw, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def say(self, words: str) -> None:
        self.console.print(words, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def step(self, info: StepInfo) -> None:
        self.info, self.left = info, self.clock.left(info.step, info.steps)
        self.losses.append(info.loss)

    def validated(self, step: int, values: Mapping[str, float]) -> None:
        self.validation = validation(values)

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self.info is None:
            return Text("reading data and building the model …", style="dim")
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        left = f"{in_time(self.left)} left" if self.left is not None and self.info.step < self.info.steps else ""
        bar.add_row(f"step {self.info.step:,}/{self.info.steps:,}", ProgressBar(self.info.steps, self.info.step), left)
        values = self.info.metrics
        facts = [f"loss {self.info.loss:.4f}", self.validation]
        facts += [si(values["speed/tokens_per_s"], "tokens/s")] if "speed/tokens_per_s" in values else []
        facts += [f"MFU {values['speed/mfu']:.1%}"] if "speed/mfu" in values else []
        losses = Text(sparkline(self.losses, max(8, self.console.width - 2)), style="cyan")
        return Group(bar, losses, Text("  ".join(fact for fact in facts if fact), no_wrap=True, overflow="ellipsis"))


def choose(json_lines: bool) -> Display:
    """The display for where stdout goes, and for this process's place among those of the run."""
    if int(os.environ.get("RANK", "0")) > 0:
        return Silent()
    if json_lines:
        return JsonLines()
    if sys.stdout.isatty():
        from rich.console import Console

        return Live(Console())
    return Lines()
