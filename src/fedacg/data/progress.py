"""How far a long first load is: a bar on a terminal, elsewhere a line every few seconds."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EVERY = 5.0
"""Seconds between lines where there is no terminal; what takes less is silent there."""


@contextmanager
def progress(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Shown on stderr; gives what moves it on by a number of units."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(title, total, unit)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


class _Lines:
    def __init__(self, title: str, total: int, unit: str) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done, self._shown = 0, monotonic()

    def __call__(self, count: int) -> None:
        self._done += count
        if monotonic() - self._shown >= EVERY:
            self._shown = monotonic()
            print(f"{self._title}: {self._done} of {self._total} {self._unit}", file=sys.stderr, flush=True)
