"""The one table of a report as numbers: a row for each group of runs, and CSV for programs.

Every number comes from the rounds themselves, so runs in progress and finished runs are measured alike.
`cells` formats them for readers.
"""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from fedacg.config.fields import Goal
from fedacg.config.methods import BASELINES
from fedacg.core.output import csv_text
from fedacg.report.runs import Group
from fedacg.report.statistics import Sample
from fedacg.runs.history import ACCURACY, Reached, Shown, goal_of


@dataclass(frozen=True)
class Spread:
    """A statistic over the seeds of a group: mean and sample standard deviation (n − 1)."""

    mean: float
    std: float | None
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)
    """The values, in the order of the seeds; unknown for published numbers."""

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
        """The least that a seed spent without reaching the target."""
        return min(seed.value for seed in self.seeds if not seed.reached)

    @property
    def reached(self) -> int:
        """How many seeds reached the target."""
        return sum(seed.reached for seed in self.seeds)

    @property
    def missed(self) -> int:
        """How many did not."""
        return len(self.seeds) - self.reached


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
    """The figure in the accuracy columns: another one if the runs have no accuracy."""
    goals: tuple[Goal, ...] = ()
    """The goals of `rounds_to` and `bytes_to`; by default, the row's targets."""

    @property
    def contends(self) -> bool:
        """Whether it may be the best: what bounds a contest, such as `centralised`, does not win it."""
        return self.method not in BASELINES

    def sample(self, spread: Spread | None) -> Sample:
        """A figure of this row by seed; nothing where some seed has none."""
        known = spread is not None and len(spread.values) == len(self.seeds)
        return dict(zip(self.seeds, spread.values, strict=True)) if spread is not None and known else {}


def rows_of(groups: Sequence[Group], targets: Sequence[float | Goal]) -> list[Row]:
    """The statistics of each group: final accuracy, final moving average, and the effort to each target."""
    shown = Shown.of(run.history for group in groups for run in group.runs)
    return [_row(group, tuple(map(goal_of, targets)), shown) for group in groups]


def goals_of(rows: Sequence[Row], targets: Sequence[float]) -> Sequence[Goal]:
    """The goals of these rows' efforts."""
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


def headline(rows: Sequence[Row], targets: Sequence[float], *, over: bool) -> str:
    """Which method won and by how much, in a sentence or two that claim no more than the seeds allow; or empty.

    It goes by the moving average of the figure that stands for the runs, where they end; with runs that are not
    `over`, so far.
    """
    known = [row for row in rows if row.moving_average]
    known = [row for row in known if row.contends] or known
    if not known:
        return ""
    shown = known[0].shown
    sign = 1 if shown.rises else -1
    best, *others = sorted(known, key=lambda row: -sign * _end(row).mean)
    average = f"a moving average of the {shown.title} of {_value(_end(best).mean, shown)}"
    if not others:
        words = f"{best.label} {'ended' if over else 'is so far'} at {average}"
        return f"{words}{_soonest(best, None, targets)}. {_seeds([best])}"
    rest, extreme = others[0], "highest" if shown.rises else "lowest"
    gap = abs(_end(best).mean - _end(rest).mean)
    if round(gap, 2 if shown.percent else 12) == 0:
        words = f"{best.label} and {rest.label} {'ended' if over else 'are so far'} level, at {average}"
        return f"{words}. {_seeds([best, rest])}"
    side = "above" if shown.rises else "below"
    by = f"{_distance(gap, shown)} {side} {rest.label}"
    plain = next((row for row in others[1:] if row.method == "fedavg"), None)
    if plain:
        further = abs(_end(best).mean - _end(plain).mean)
        by += f" and {_distance(further, shown).removesuffix(' points')} {side} {plain.label}"
    words = f"{best.label} {f'ended {extreme}' if over else f'is {extreme} so far'}, with {average}: {by}"
    return f"{words}{_soonest(best, plain or rest, targets)}. {_seeds([best, rest], gap)}"


def _end(row: Row) -> Spread:
    assert row.moving_average is not None
    return row.moving_average


def _value(number: float, shown: Shown) -> str:
    return f"{number:.2f} %" if shown.percent else f"{number:.4g}"


def _distance(gap: float, shown: Shown) -> str:
    return f"{gap:.2f} points" if shown.percent else f"{gap:.2g}"


def _soonest(best: Row, other: Row | None, targets: Sequence[float]) -> str:
    """How soon the best reached the hardest target that it did reach, beside another."""
    efforts = zip(goals_of([best], targets), best.rounds_to, strict=False)
    reached = [
        (goal.value if goal.rising else -goal.value, place)
        for place, (goal, effort) in enumerate(efforts)
        if effort.spread and goal.figure == best.shown.name
    ]
    if not reached:
        return ""
    place = max(reached)[1]
    rounds, goal = best.rounds_to[place].spread, goals_of([best], targets)[place]
    assert rounds is not None
    words = f". It reached {goal.title} after {rounds.mean:.0f} round{'s' * (round(rounds.mean) != 1)}"
    if other is None:
        return words
    theirs = other.rounds_to[place]
    if theirs.spread is None:
        return f"{words}, which {other.label} did not in {theirs.spent}"
    return f"{words}, {other.label} after {theirs.spread.mean:.0f}"


def _seeds(rows: Sequence[Row], gap: float | None = None) -> str:
    """The caveat for this number of seeds."""
    fewest = min(len(row.seeds) for row in rows)
    if fewest == 1:
        return "One seed each: the order may be chance." if len(rows) > 1 else "One seed."
    if gap is None:
        return f"Mean over {fewest} seeds."
    spread = sum((_end(row).std or 0.0) ** 2 for row in rows) ** 0.5
    verdict = "no more than" if gap <= spread else "more than"
    deviation = _distance(spread, rows[0].shown)
    return f"Over {fewest} seeds the difference is {verdict} its standard deviation of {deviation}."


def to_csv(rows: Sequence[Row], targets: Sequence[float]) -> str:
    """The table for programs: but for the first two columns numbers only, in full precision, bytes in bytes.

    Where `not_reached_T` seeds missed a target, rounds and bytes are the least that one spent without reaching it.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    accuracy = not rows or rows[0].shown.name == "test_accuracy"
    shown = "accuracy_percent" if accuracy else rows[0].shown.name + "_percent" * rows[0].shown.percent
    heads = ["label", "method", "seeds", *_pair_of_heads(shown)]
    heads += _pair_of_heads("moving_average_percent" if accuracy else f"{shown}_moving_average")
    for goal in goals_of(rows, targets):
        heads += [f"not_reached_{goal.key}", *_pair_of_heads(f"rounds_to_{goal.key}")]
        heads += _pair_of_heads(f"bytes_to_{goal.key}")
    writer.writerow([*heads, *_pair_of_heads("seconds")])
    for row in rows:
        numbers = _pair(row.accuracy) + _pair(row.moving_average)
        for rounds, sent in zip(row.rounds_to, row.bytes_to, strict=True):
            numbers += [f"{rounds.missed}", *effort_pair(rounds), *effort_pair(sent)]
        names = csv_text(row.label), csv_text(row.method)
        writer.writerow([*names, len(row.seeds), *numbers, *_pair(row.seconds)])
    return out.getvalue()


def _pair_of_heads(head: str) -> list[str]:
    return [head, f"{head}_std"]


def _pair(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["", ""]
    return [repr(spread.mean), "" if spread.std is None else repr(spread.std)]


def effort_pair(effort: Effort) -> list[str]:
    """Mean and deviation, or what was spent without reaching the target."""
    return _pair(effort.spread) if effort.spread else [f"{effort.spent}", ""]
