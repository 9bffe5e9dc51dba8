"""The one table of a report as numbers: a row for each group of runs, and CSV for programs.

Every number comes from the rounds themselves, so runs in progress and finished runs are measured alike.
How they are set for people to read is in `cells`.
"""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from fedacg.config.goals import Goal
from fedacg.core.output import csv_text
from fedacg.report.runs import Group
from fedacg.runs.history import ACCURACY, Reached, Shown, goal_of


@dataclass(frozen=True)
class Spread:
    """A statistic over the seeds of a group: mean and sample standard deviation (n − 1)."""

    mean: float
    std: float | None

    @classmethod
    def over(cls, values: Sequence[float]) -> Self:
        """The spread of at least one value; one alone has no deviation."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Effort:
    """Rounds or bytes to a target over the seeds of a group.

    If every seed reached it, mean ± standard deviation. If not, a mean would flatter: then it is the least
    that a seed spent without reaching it, with a plus, and with several seeds how many reached it:
    "100+" for one seed, "100+ (2/3)" for three of which two did.
    """

    seeds: tuple[Reached, ...]

    @property
    def spread(self) -> Spread | None:
        """Mean and deviation, None unless every seed reached the target."""
        if not all(seed.reached for seed in self.seeds):
            return None
        return Spread.over([seed.value for seed in self.seeds])

    @property
    def spent(self) -> int:
        """The least that a seed spent in vain."""
        return min(seed.value for seed in self.seeds if not seed.reached)

    @property
    def reached(self) -> int:
        """How many seeds reached the target."""
        return sum(seed.reached for seed in self.seeds)


@dataclass(frozen=True)
class Row:
    """The statistics of one group; accuracies are in percent."""

    label: str
    method: str
    seeds: tuple[int, ...]
    accuracy: Spread | None
    moving_average: Spread | None
    rounds_to: tuple[Effort, ...]
    bytes_to: tuple[Effort, ...]
    seconds: Spread
    shown: Shown = ACCURACY
    """What stands in the columns of the accuracy: another figure where the runs have none."""
    goals: tuple[Goal, ...] = ()
    """What `rounds_to` and `bytes_to` are to; without any, the targets that go with the row."""


def rows_of(groups: Sequence[Group], targets: Sequence[float | Goal]) -> list[Row]:
    """The statistics of each group: final accuracy, final moving average, and the effort to each target."""
    shown = Shown.of(run.history for group in groups for run in group.runs)
    return [_row(group, tuple(map(goal_of, targets)), shown) for group in groups]


def goals_of(rows: Sequence[Row], targets: Sequence[float]) -> Sequence[Goal]:
    """What the efforts of these rows are to."""
    return (rows[0].goals if rows else ()) or [*map(goal_of, targets)]


def _row(group: Group, targets: Sequence[Goal], shown: Shown) -> Row:
    histories = [run.history for run in group.runs]
    values = [[*history.series(shown.name).values()] for history in histories]
    averages = [history.moving_average(figure=shown.name) for history in histories]
    ends = [shown.scale * each[-1] for each in values if each]
    average_ends = [shown.scale * each[-1] for each in averages if each]
    return Row(
        label=group.label,
        method=group.method,
        seeds=tuple(run.seed for run in group.runs),
        accuracy=Spread.over(ends) if ends else None,
        moving_average=Spread.over(average_ends) if average_ends else None,
        rounds_to=tuple(
            Effort(tuple(Reached.of(history.rounds_to(target), history.rounds) for history in histories))
            for target in targets
        ),
        bytes_to=tuple(
            Effort(tuple(Reached.of(history.bytes_to(target), history.total_bytes) for history in histories))
            for target in targets
        ),
        seconds=Spread.over([history.seconds["total"] for history in histories]),
        shown=shown,
        goals=tuple(targets),
    )


def to_csv(rows: Sequence[Row], targets: Sequence[float]) -> str:
    """The table for programs: full precision, bytes in bytes, "100+" where a seed missed the target."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    accuracy = not rows or rows[0].shown.name == "test_accuracy"
    shown = "accuracy_percent" if accuracy else rows[0].shown.name + "_percent" * rows[0].shown.percent
    heads = ["label", "method", "seeds", *_pair_of_heads(shown)]
    heads += _pair_of_heads("moving_average_percent" if accuracy else f"{shown}_moving_average")
    for goal in goals_of(rows, targets):
        heads += [f"reached_{goal.key}", *_pair_of_heads(f"rounds_to_{goal.key}")]
        heads += _pair_of_heads(f"bytes_to_{goal.key}")
    writer.writerow([*heads, *_pair_of_heads("seconds")])
    for row in rows:
        numbers = _pair(row.accuracy) + _pair(row.moving_average)
        for rounds, sent in zip(row.rounds_to, row.bytes_to, strict=True):
            numbers += [f"{rounds.reached}/{len(rounds.seeds)}", *_effort_pair(rounds), *_effort_pair(sent)]
        seeds = " ".join(map(str, row.seeds))
        writer.writerow([csv_text(row.label), csv_text(row.method), seeds, *numbers, *_pair(row.seconds)])
    return out.getvalue()


def _pair_of_heads(head: str) -> list[str]:
    return [head, f"{head}_std"]


def _pair(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["", ""]
    return [repr(spread.mean), "" if spread.std is None else repr(spread.std)]


def _effort_pair(effort: Effort) -> list[str]:
    return _pair(effort.spread) if effort.spread else [f"{effort.spent}+", ""]
