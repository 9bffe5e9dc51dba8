"""What is seen while runs go on: live bars at a terminal or in a notebook, a line now and then elsewhere."""

from collections.abc import Callable
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedacg.config.experiment import Experiment

if TYPE_CHECKING:
    from fedacg.runs.history import History
    from fedacg.runs.runner import Observer
    from fedacg.simulation.metrics import RoundMetrics

_LINE_SECONDS = 30


class Bars:
    """A bar a run, with its accuracy so far; bars of finished runs stay."""

    def __init__(self, console: Console, name: Callable[[Experiment], str]) -> None:
        self._name = name
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            expand=True,
        )
        self._task = TaskID(0)

    def begin(self, experiment: Experiment, done: int) -> None:
        starting = "" if experiment.engine.name == "serial" else f"starting workers for round {done + 1}"
        self._task = self._progress.add_task(
            self._name(experiment), total=experiment.rounds, completed=done, accuracy=starting
        )
        self._progress.start()

    def round(self, metrics: "RoundMetrics", history: "History") -> None:
        accuracy = f"{100 * history.accuracy[-1]:5.1f} %" if history.accuracy else ""
        self._progress.update(self._task, completed=metrics.round, accuracy=accuracy)

    def end(self) -> None:
        self._progress.stop()


class Lines:
    """Plain lines: one when a run starts, one every half minute, one when it ends."""

    def __init__(self, console: Console, name: Callable[[Experiment], str]) -> None:
        self._console, self._name = console, name

    def begin(self, experiment: Experiment, done: int) -> None:
        self._label, self._rounds, self._last = self._name(experiment), experiment.rounds, monotonic()
        after = f", after round {done}" if done else ""
        self._print(f"{self._label}: {self._rounds} rounds{after}")

    def round(self, metrics: "RoundMetrics", history: "History") -> None:
        if monotonic() - self._last < _LINE_SECONDS and metrics.round < self._rounds:
            return
        self._last = monotonic()
        accuracy = f", accuracy {100 * history.accuracy[-1]:.1f} %" if history.accuracy else ""
        self._print(f"{self._label}: round {metrics.round} of {self._rounds}{accuracy}")

    def end(self) -> None:
        """Each line was written when it was due."""

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def describe(experiment: Experiment) -> str:
    """A run in a few words."""
    return f"{experiment.method.name} (seed {experiment.seed})"


def make_progress(console: Console, quiet: bool, name: Callable[[Experiment], str] = describe) -> "list[Observer]":
    """The display that suits where the output goes, none when quiet; `name` says what a run is called there."""
    if quiet:
        return []
    # In a notebook rich draws by ipywidgets, and without them it can only print.
    live = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    return [Bars(console, name) if live else Lines(console, name)]
