"""The one table of a report as numbers: a row for each group of runs, and CSV for programs.

Every number comes from the rounds themselves, so runs in progress and finished runs are measured alike.
How they are set for people to read is in `cells`.
"""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from fedacg.core.output import csv_text
from fedacg.report.runs import Group
from fedacg.report.statistics import Sample
from fedacg.runs.history import Reached


@dataclass(frozen=True)
class Spread:
    """A statistic over the seeds of a group: mean and sample standard deviation (n − 1)."""

    mean: float
    std: float | None
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)
    """Those it is over, in the order of the seeds; not known of published numbers."""

    @classmethod
    def over(cls, values: Sequence[float]) -> Self:
        """The spread of at least one value; one alone has no deviation."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, tuple(values))


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

    def sample(self, spread: Spread | None) -> Sample:
        """A figure of this row by seed; nothing where some seed has none."""
        known = spread is not None and len(spread.values) == len(self.seeds)
        return dict(zip(self.seeds, spread.values, strict=True)) if spread is not None and known else {}


def rows_of(groups: Sequence[Group], targets: Sequence[float]) -> list[Row]:
    """The statistics of each group: final accuracy, final moving average, and the effort to each target."""
    return [_row(group, targets) for group in groups]


def _row(group: Group, targets: Sequence[float]) -> Row:
    histories = [run.history for run in group.runs]
    evaluated = [history for history in histories if history.evaluated]
    return Row(
        label=group.label,
        method=group.method,
        seeds=tuple(run.seed for run in group.runs),
        accuracy=Spread.over([100 * history.accuracy[-1] for history in evaluated]) if evaluated else None,
        moving_average=(
            Spread.over([100 * history.moving_average()[-1] for history in evaluated]) if evaluated else None
        ),
        rounds_to=tuple(
            Effort(tuple(Reached.of(history.rounds_to(target), history.rounds) for history in histories))
            for target in targets
        ),
        bytes_to=tuple(
            Effort(tuple(Reached.of(history.bytes_to(target), history.total_bytes) for history in histories))
            for target in targets
        ),
        seconds=Spread.over([history.seconds["total"] for history in histories]),
    )


def to_csv(rows: Sequence[Row], targets: Sequence[float]) -> str:
    """The table for programs: full precision, bytes in bytes, "100+" where a seed missed the target."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = ["label", "method", "seeds", *_pair_of_heads("accuracy_percent")]
    heads += _pair_of_heads("moving_average_percent")
    for target in targets:
        heads += [f"reached_{target:g}", *_pair_of_heads(f"rounds_to_{target:g}")]
        heads += _pair_of_heads(f"bytes_to_{target:g}")
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
