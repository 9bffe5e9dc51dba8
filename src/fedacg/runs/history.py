"""The rounds of a run, and the statistics the paper reports of them.

Accuracies are fractions here; percent is a matter of display.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Self, overload

from fedacg.config.fields import Goal, rises
from fedacg.core import files
from fedacg.errors import InputError
from fedacg.simulation.metrics import FIGURES, RoundMetrics

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped,unused-ignore]

DECAY = 0.9
"""The paper's moving average: ema ← 0.9·ema + 0.1·acc, per round."""


@dataclass(frozen=True)
class Reached:
    """The effort to reach a target, or the effort spent without reaching it."""

    value: int
    reached: bool

    @classmethod
    def of(cls, found: int | None, spent: int) -> Self:
        """`found` if the target was reached, else all that was `spent`."""
        return cls(spent, False) if found is None else cls(found, True)

    def __str__(self) -> str:
        return f"{self.value}" if self.reached else f"{self.value}+"


@dataclass(frozen=True)
class Shown:
    """The headline figure of runs, shown in curves, tables and displays."""

    name: str

    @property
    def percent(self) -> bool:
        """Whether it is a fraction shown in percent."""
        return self.name in ("test_accuracy", "validation/accuracy")

    @property
    def scale(self) -> float:
        """What its values are multiplied by to be shown."""
        return 100.0 if self.percent else 1.0

    @property
    def rises(self) -> bool:
        return rises(self.name)

    @property
    def title(self) -> str:
        """Its name in words: test accuracy, validation loss, test f1."""
        return self.name.replace("_", " ").replace("/", " ")

    @classmethod
    def of(cls, histories: "Iterable[History]") -> Self:
        """The headline of several runs: the first that is an accuracy, else one from an evaluation."""
        names = sorted((history.headline for history in histories if history), key=_last_choice)
        return cls(names[0]) if names else cls("test_accuracy")


def _last_choice(name: str) -> int:
    return 0 if Shown(name).percent else 2 if name == "train_loss" else 1


ACCURACY = Shown("test_accuracy")


class History(Sequence[RoundMetrics]):
    """The rounds of one run in their order.

    A round whose accuracy is NaN counts as not evaluated: it neither reaches a target nor enters the
    moving average, and the next evaluation's weight spans it.
    """

    def __init__(self, rounds: Iterable[RoundMetrics] = ()) -> None:
        self._rounds: list[RoundMetrics] = []
        for metrics in rounds:
            self.append(metrics)

    def append(self, metrics: RoundMetrics) -> None:
        """Add the next round; rounds only go up."""
        if metrics.round <= self.rounds:
            raise InputError(f"round {metrics.round} after round {self.rounds}: rounds go up from 1")
        self._rounds.append(metrics)

    def __len__(self) -> int:
        return len(self._rounds)

    def replace_last(self, metrics: RoundMetrics) -> None:
        """Replace the last round."""
        if not self._rounds or metrics.round != self.rounds:
            raise InputError(f"round {metrics.round}: the last is round {self.rounds}")
        self._rounds[-1] = metrics

    def to_frame(self) -> "pandas.DataFrame":
        """The rounds as a pandas table: a row each, figures and scores as columns, NaN where a round has none."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_frame: needs pandas, which is not installed: pip install pandas") from None
        plain = [f.name for f in fields(RoundMetrics) if f.name not in ("round", "drift", "scores", "extra")]
        rows = [{**{name: getattr(m, name) for name in plain}, **(m.scores or {})} for m in self._rounds]
        numbers = pandas.Index([m.round for m in self._rounds], name="round")
        names = [*plain, *self.score_names]
        return pandas.DataFrame({name: [row.get(name) for row in rows] for name in names}, index=numbers)

    def __repr__(self) -> str:
        """One line: the number of rounds, and the last headline figure."""
        if not self._rounds:
            return "History(no rounds)"
        values = self.series(self.headline)
        last = f", {self.headline} {next(reversed(values.values())):.4g}" if values else ""
        return f"History({self.rounds} round{'s' * (self.rounds != 1)}{last}, {human_bytes(self.total_bytes)})"

    @overload
    def __getitem__(self, index: int) -> RoundMetrics: ...
    @overload
    def __getitem__(self, index: slice) -> list[RoundMetrics]: ...
    def __getitem__(self, index: int | slice) -> RoundMetrics | list[RoundMetrics]:
        return self._rounds[index]

    @property
    def rounds(self) -> int:
        """The number of the last completed round, 0 before any."""
        return self._rounds[-1].round if self._rounds else 0

    @property
    def evaluated(self) -> list[RoundMetrics]:
        """The rounds with an accuracy; `accuracy` and `moving_average` go by these."""
        return [m for m in self._rounds if m.test_accuracy is not None and not math.isnan(m.test_accuracy)]

    @property
    def accuracy(self) -> list[float]:
        """The test accuracy of each evaluated round."""
        return [m.test_accuracy for m in self.evaluated if m.test_accuracy is not None]

    def series(self, name: str) -> dict[int, float]:
        """A figure by its name, as `RoundMetrics.score` has it: its value in each round that has a number."""
        found = {m.round: m.score(name) for m in self._rounds}
        return {number: value for number, value in found.items() if value is not None and math.isfinite(value)}

    @property
    def score_names(self) -> list[str]:
        """The names of all `scores` that any round has, in the order of their first appearance."""
        return list(dict.fromkeys(name for m in self._rounds for name in m.scores or {}))

    @property
    def figure_names(self) -> list[str]:
        """The names of all figures that any round has: those with a field of their own, and the scores."""
        return [*(name for name in FIGURES if self.series(name)), *self.score_names]

    @property
    def headline(self) -> str:
        """The headline figure of the run, shown in curves, tables and displays.

        The test accuracy if there is one, else the validation accuracy, else the first metric of the test set, of
        the validation set, and after these a loss.
        """
        own = (name for part in ("test/", "validation/") for name in self.score_names if name.startswith(part))
        wanted = ("test_accuracy", "validation/accuracy", *own, "test_loss")
        found = (name for name in wanted if name != "validation/loss" and self.series(name))
        return next(found, "validation/loss" if self.series("validation/loss") else "train_loss")

    def moving_average(self, decay: float = DECAY, figure: str = "test_accuracy") -> list[float]:
        """The exponential moving average of the accuracy, or of another figure, at each round that has it.

        ema ← decayᵏ·ema + (1 − decayᵏ)·acc, where k is the number of rounds since the previous
        evaluation: the paper's average for k = 1, and with sparser evaluation what it would be had the
        accuracy held for those k rounds. The first evaluation starts the average at its own accuracy.
        """
        averages: list[float] = []
        previous = 0
        for number, value in self.series(figure).items():
            average = averages[-1] if averages else value
            # Written as a step towards acc so that a constant accuracy stays constant to the bit.
            averages.append(average + (1 - decay ** (number - previous)) * (value - average))
            previous = number
        return averages

    def accuracy_at(self, round: int) -> float | None:
        """The accuracy at the last evaluated round up to `round`, None before the first."""
        return self._at(round, self.accuracy)

    def moving_average_at(self, round: int, decay: float = DECAY) -> float | None:
        """The moving average at the last evaluated round up to `round`, None before the first."""
        return self._at(round, self.moving_average(decay))

    def _at(self, round: int, series: list[float]) -> float | None:
        index = bisect_right([m.round for m in self.evaluated], round)
        return series[index - 1] if index else None

    def rounds_to(self, target: float | str | Goal, decay: float = DECAY) -> int | None:
        """The first evaluated round whose moving average is at least `target`, or meets a goal of another figure.

        `rounds_to(0.9)` is of the test accuracy, `rounds_to("test_loss<=0.3")` of what it says; with `decay=0` of
        the figure itself and not its moving average.
        """
        goal = goal_of(target)
        averages = zip(self.series(goal.figure), self.moving_average(decay, goal.figure), strict=True)
        return next((number for number, average in averages if goal.met(average)), None)

    def bytes_to(self, target: float | str | Goal, decay: float = DECAY) -> int | None:
        """The bytes sent both ways in all rounds up to and including `rounds_to(target)`."""
        last = self.rounds_to(target, decay)
        if last is None:
            return None
        return sum(m.bytes_down + m.bytes_up for m in self._rounds if m.round <= last)

    @property
    def cumulative_bytes(self) -> list[int]:
        """The bytes sent both ways up to the end of each round."""
        return list(accumulate(m.bytes_down + m.bytes_up for m in self._rounds))

    @property
    def bytes_down(self) -> int:
        """The bytes sent from the server to clients."""
        return sum(m.bytes_down for m in self._rounds)

    @property
    def bytes_up(self) -> int:
        """The bytes sent from clients to the server."""
        return sum(m.bytes_up for m in self._rounds)

    @property
    def total_bytes(self) -> int:
        """The bytes sent both ways."""
        return self.bytes_down + self.bytes_up

    @property
    def seconds(self) -> dict[str, float]:
        """The time spent in the parts of all rounds: train, aggregate, evaluate, and their total."""
        parts = {
            "train": math.fsum(m.seconds_train for m in self._rounds),
            "aggregate": math.fsum(m.seconds_aggregate for m in self._rounds),
            "evaluate": math.fsum(m.seconds_evaluate for m in self._rounds),
        }
        return parts | {"total": math.fsum(parts.values())}


def goal_of(target: float | str | Goal) -> Goal:
    """A test accuracy as a number, or a text such as `test/f1>=0.8`, as a goal."""
    if isinstance(target, Goal):
        return target
    return Goal.parse(target) if isinstance(target, str) else Goal.accuracy(target)


def read_metrics(path: Path, *, sealed: bool = False, last: int | None = None) -> tuple[History, list[str]]:
    """The rounds in a `metrics.jsonl`, and notes on what was skipped.

    A last line that is not JSON is one that is being written, or was when the run was killed: it is left
    out with a note. Anything else that does not fit is an InputError that names the line. With `sealed`, every
    line must have a checksum. Lines after the round `last` are ignored.
    """
    try:
        content = files.read_whole(path, files.MOST_TEXT)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    history = History()
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    for number, line in lines:
        if last is not None and history.rounds >= last:
            break
        try:
            history.append(RoundMetrics.from_json(line, sealed=sealed))
        except InputError as error:
            if isinstance(error, files.NotJson) and number == lines[-1][0]:
                return history, [f"{path}: line {number} is incomplete and was skipped"]
            raise InputError(f"{path}, line {number}: {error}") from error
    return history, []


def bytes_unit(count: float) -> tuple[int, str]:
    """The decimal unit in which `count` reads best to three digits: its size in bytes and its name."""
    for power, unit in enumerate(("B", "kB", "MB", "GB")):
        # 999.5 kB would round to 1000 kB: it belongs to the next unit.
        if count < 999.5 * 1000**power:
            return 1000**power, unit
    return 1000**4, "TB"


def three_digits(value: float) -> str:
    """A number to three digits, and whole from a hundred on: 1.23, 12.3, 123, 1234."""
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def human_bytes(count: float) -> str:
    """A byte count for people, in decimal units: "1.23 MB"."""
    size, unit = bytes_unit(count)
    return f"{count:.0f} B" if size == 1 else f"{three_digits(count / size)} {unit}"


def human_seconds(seconds: float) -> str:
    """A time for people who wait: "40 s", "12 min", "3.5 h", "2.1 days"."""
    for size, unit, most in ((1, "s", 90), (60, "min", 90), (3600, "h", 48)):
        if seconds < most * size:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.1f} days"
