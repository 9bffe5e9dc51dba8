"""Progress displays: one block in a terminal or notebook, an occasional line elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedacg.config.experiment import Experiment
from fedacg.config.methods import method_title
from fedacg.runs.history import human_seconds

if TYPE_CHECKING:
    from fedacg.runs.callbacks import RunView
    from fedacg.runs.history import History

_LINE_SECONDS = 30
_MOST_LINES = 12
"""Most lines of the block, however high the terminal."""
_ECHO = 6
"""Free columns at the right: a terminal writes ^C at the cursor, and that must not wrap."""


class Display:
    """Shows nothing; the display of a quiet command, and the base of the others."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def turn(self, name: str) -> None:
        """The run of this name is next."""

    def begin(self, run: "RunView") -> None:
        """A run starts or resumes."""

    def round(self, run: "RunView") -> None:
        """A round has ended."""

    def end(self, run: "RunView") -> None:
        """The run has ended, or was stopped."""

    def rest(self) -> None:
        """Leave the terminal to others until the next run begins."""


@dataclass
class _Line:
    """A run of the block: waiting, in progress or done."""

    name: str
    rounds: int
    before: int = 0
    """Rounds of an earlier command."""
    done: int = 0
    figure: str = ""
    started: float | None = None
    first: float | None = None
    """When the first round ended: it is not typical of the others."""
    seconds: float | None = None
    """How long it took; None until it is over."""
    whole: bool = False
    """Whether it finished, with its last round or one that a callback chose."""

    @property
    def rate(self) -> float | None:
        """Seconds per round, once there is one."""
        rounds = self.done - self.before
        if self.started is None or self.first is None or not rounds:
            return None
        now = monotonic() if self.seconds is None else self.started + self.seconds
        return (now - self.first) / (rounds - 1) if rounds > 1 else self.first - self.started


class Block(Display):
    """All runs of a command as one block: the last finished ones, the current one, the next.

    It is drawn in place and removed at the end; a single run leaves its last bar.
    """

    def __init__(self, console: Console, runs: Mapping[str, int]) -> None:
        self._console = console
        self._lines = [_Line(name, rounds) for name, rounds in runs.items()]
        self._places = {name: place for place, name in enumerate(runs)}
        self._next = 0
        self._workers = True
        """Whether workers may still have to start, as before the first round."""
        self._live: Live | None = None

    def turn(self, name: str) -> None:
        self._next = self._places[name]

    def begin(self, run: "RunView") -> None:
        experiment, done = run.experiment, run.done
        line = self._lines[self._next]
        self._workers &= experiment.engine.name != "serial"
        line.rounds, line.before, line.done, line.started = experiment.rounds, done, done, monotonic()
        if self._live is None:
            self._live = Live(
                get_renderable=self._draw,
                console=self._console,
                transient=len(self._lines) > 1,
                refresh_per_second=4,
            )
            self._live.start()

    def round(self, run: "RunView") -> None:
        line = self._lines[self._next]
        line.done, line.figure, self._workers = run.done, figure(run.history), False
        line.first = line.first or monotonic()

    def end(self, run: "RunView") -> None:
        line = self._lines[self._next]
        line.seconds = monotonic() - (line.started or monotonic())
        line.whole = line.done == line.rounds or run.stopping is not None
        self._next += 1

    def rest(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> RenderableType:
        several = len(self._lines) > 1
        table = Table.grid(padding=(0, 1), expand=True)
        table.width = max(20, self._console.width - _ECHO)
        if several:
            table.add_column(width=1)
        table.add_column(no_wrap=True, ratio=3, overflow="ellipsis")
        table.add_column(ratio=2)
        for _ in range(3):
            table.add_column(no_wrap=True, justify="right")
        first, last = self._shown()
        if several:
            table.title, table.title_justify, table.title_style = self._headline(), "left", ""
        for place in range(first, last):
            cells = self._cells(self._lines[place])
            table.add_row(*([_mark(self._lines[place])] if several else []), *cells)
        if last < len(self._lines):
            table.add_row("", Text(f"… and {len(self._lines) - last} more", style="dim"))
        return table

    def _shown(self) -> tuple[int, int]:
        """The range of runs shown: as many as fit, the current one never at the edge."""
        room = max(1, min(_MOST_LINES, self._console.height - 4))
        if len(self._lines) <= room:
            return 0, len(self._lines)
        first = min(max(0, self._next - room // 3), len(self._lines) - room)
        return first, first + room

    def _headline(self) -> str:
        over = sum(line.seconds is not None for line in self._lines)
        words = f"{over} of {len(self._lines)} runs done"
        rates = [rate for line in self._lines if (rate := line.rate) is not None]
        if not rates:
            return words
        usual = sum(rates) / len(rates)
        waiting = [line for line in self._lines if line.seconds is None]
        return f"{words}, {human_seconds(sum(_left(line, line.rate or usual) for line in waiting))} left"

    def _cells(self, line: _Line) -> list[RenderableType]:
        if line.started is None:
            return [Text(line.name, style="dim"), "", "", "", ""]
        counted = f"{line.done}/{line.rounds}"
        if line.seconds is not None:
            bar: RenderableType = "" if len(self._lines) > 1 else ProgressBar(line.rounds, line.done)
            return [Text(line.name), bar, counted, line.figure, human_seconds(line.seconds)]
        if line.done == line.before:
            doing = "starting workers" if self._workers else f"round {line.done + 1}"
            return [Text(line.name), Text(doing, style="dim"), counted, "", ""]
        left = f"{human_seconds(_left(line, line.rate or 0.0))} left"
        return [Text(line.name), ProgressBar(line.rounds, line.done), counted, line.figure, left]


def _left(line: _Line, rate: float) -> float:
    return rate * (line.rounds - line.done)


def _mark(line: _Line) -> str:
    if line.seconds is None:
        return " " if line.started is None else "▸"
    return "✓" if line.whole else "✗"


class Lines(Display):
    """Plain lines: one when a run starts, one every half minute, one when it ends."""

    def __init__(self, console: Console, runs: Mapping[str, int]) -> None:
        self._console = console

    def turn(self, name: str) -> None:
        self._label = name

    def begin(self, run: "RunView") -> None:
        done = run.done
        self._rounds, self._last = run.experiment.rounds, monotonic()
        after = f", after round {done}" if done else ""
        self._print(f"{self._label}: {self._rounds} rounds{after}")

    def round(self, run: "RunView") -> None:
        if monotonic() - self._last < _LINE_SECONDS and run.done < self._rounds:
            return
        self._last = monotonic()
        found = figure(run.history)
        self._print(f"{self._label}: round {run.done} of {self._rounds}{', ' * bool(found)}{found}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def figure(history: "History") -> str:
    """The current headline figure, in a few characters."""
    if history.accuracy:
        return f"accuracy {100 * history.accuracy[-1]:.1f} %"
    values = history.series(history.headline)
    return f"{history.headline} {values[max(values)]:.4g}" if values else ""


def describe(experiment: Experiment) -> str:
    """A run in a few words."""
    return f"{method_title(experiment.method.name)} (seed {experiment.seed})"


def make_progress(console: Console, quiet: bool, runs: Mapping[str, int]) -> Display:
    """The display that suits the output, for runs in this order with their rounds."""
    if quiet:
        return Display()
    # In a notebook rich uses ipywidgets; without them it can only print.
    live = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    return Block(console, runs) if live else Lines(console, runs)
