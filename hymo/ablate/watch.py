"""What a person sees while runs are computed: a line for each that ends, and on a terminal a bar for each that is under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hymo.ablate.store import Outcome, RunSpec, Status, Store, read_json
from hymo.units import in_time


class Watch(AbstractContextManager["Watch"]):
    """Reads the store, and so shows the runs of other processes' workers as well as its own."""

    def __init__(self, console: Console, store: Store) -> None:
        self.console, self.store = console, store
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"), TimeRemainingColumn(), console=console, transient=True
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def say(self, words: str) -> None:
        """A sentence."""
        self.console.print(words, markup=False, soft_wrap=True)

    def __call__(self, specs: Mapping[str, RunSpec], session: str) -> Callable[[], None]:
        """Follow these runs; those that have an outcome already are old news."""
        told = {key for key in specs if self.store.resolved(key, session) is not None}
        known, began = len(told), time.monotonic()

        def look() -> None:
            for key, spec in specs.items():
                if key in told:
                    continue
                outcome = self.store.resolved(key, session)
                if outcome is not None:
                    told.add(key)
                    self._end(key)
                    done = len(told) - known + sum(self._share(other) for other in specs if other not in told)
                    left = (time.monotonic() - began) / done * (len(specs) - known - done)
                    soon = f"; about {in_time(left)} left" if left >= 1 else ""
                    self.say(f"[{len(told)}/{len(specs)}] {spec.name}: {ending(outcome)}{soon}")
                elif self.console.is_terminal:
                    self._advance(key, spec.name)

        return look

    def _share(self, key: str) -> float:
        """How much of a run that is under way is done."""
        state = read_json(self.store.run(key) / "progress.json")
        return state["step"] / state["steps"] if state else 0.0

    def _advance(self, key: str, name: str) -> None:
        state = read_json(self.store.run(key) / "progress.json")
        if state is None:
            return
        facts = f"step {state['step']:,}/{state['steps']:,}  loss {state['loss']:.3f}"
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(name, total=state["steps"], facts=facts)
        self.bars.update(self.tasks[key], completed=state["step"], facts=facts)

    def _end(self, key: str) -> None:
        if key in self.tasks:
            self.bars.remove_task(self.tasks.pop(key))


def ending(outcome: Outcome) -> str:
    """How a run ended, in words."""
    if outcome.status == Status.FINISHED:
        return f"val loss {outcome.metrics['val/loss']:.4f} in {in_time(outcome.seconds)}"
    return outcome.status + (f": {outcome.error}" if outcome.error else "")
