"""What is seen while runs go on: live bars at a terminal, a line now and then elsewhere, nothing when quiet."""

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedacg.config.experiment import Experiment

if TYPE_CHECKING:
    from fedacg.runs.callbacks import Callback, RunView
    from fedacg.runs.history import History

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

    def begin(self, run: "RunView") -> None:
        experiment, done = run.experiment, run.done
        starting = "" if experiment.engine.name == "serial" else f"starting workers for round {done + 1}"
        self._task = self._progress.add_task(
            self._name(experiment), total=experiment.rounds, completed=done, accuracy=starting
        )
        self._progress.start()

    def round(self, run: "RunView") -> None:
        self._progress.update(self._task, completed=run.done, accuracy=headline(run.history))

    def end(self, run: "RunView") -> None:
        self._progress.stop()


class Lines:
    """Plain lines: one when a run starts, one every half minute, one when it ends."""

    def __init__(self, console: Console, name: Callable[[Experiment], str]) -> None:
        self._console, self._name = console, name

    def begin(self, run: "RunView") -> None:
        experiment, done = run.experiment, run.done
        self._label, self._rounds, self._last = self._name(experiment), experiment.rounds, monotonic()
        after = f", after round {done}" if done else ""
        self._print(f"{self._label}: {self._rounds} rounds{after}")

    def round(self, run: "RunView") -> None:
        if monotonic() - self._last < _LINE_SECONDS and run.done < self._rounds:
            return
        self._last = monotonic()
        accuracy = f", accuracy {100 * run.history.accuracy[-1]:.1f} %" if run.history.accuracy else ""
        other = f", {headline(run.history)}" if not accuracy and run.metrics.evaluated else ""
        self._print(f"{self._label}: round {run.done} of {self._rounds}{accuracy or other}")

    def end(self, run: "RunView") -> None:
        """Each line was written when it was due."""

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def headline(history: "History") -> str:
    """The figure that stands for a run, as it is now: a percentage if it is the accuracy, else with its name."""
    if history.accuracy:
        return f"{100 * history.accuracy[-1]:5.1f} %"
    values = history.series(history.headline)
    return f"{history.headline} {next(reversed(values.values())):.4g}" if values else ""


def describe(experiment: Experiment) -> str:
    """A run in a few words."""
    return f"{experiment.method.name} (seed {experiment.seed})"


def make_progress(console: Console, quiet: bool, name: Callable[[Experiment], str] = describe) -> "list[Callback]":
    """The display that suits where the output goes; `name` says what a run is called there."""
    if quiet:
        return []
    return [Bars(console, name) if console.is_terminal else Lines(console, name)]
