"""The curves of a report as numbers, with the colour each keeps: what both the pictures and the page draw.

Nothing is drawn here. Accuracies are in percent from here on.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fedacg.metrics import bytes_unit
from fedacg.report.runs import Group

PALETTE = (
    ("#0072b2", "#56a8e0"),
    ("#d55e00", "#f08a3c"),
    ("#009e73", "#2dc79a"),
    ("#b4588c", "#dd8fb8"),
    ("#c98a00", "#f0bd40"),
    ("#3fa3d8", "#8fd0f5"),
    ("#5a5a5a", "#b4b4b4"),
)
"""Colours for light and for dark ground, in the order given out: after Okabe and Ito, whose hues stay
apart for colour-blind readers; their yellow is left out, as it does not show on paper."""

DASHES: tuple[tuple[int, ...], ...] = ((), (6, 2), (6, 2, 1, 2), (3, 2))
"""Line patterns: the palette is gone through once in each, so 28 curves can be told apart."""


class Axis(StrEnum):
    """What a curve runs along."""

    ROUNDS = "rounds"
    BYTES = "bytes"


@dataclass(frozen=True)
class Curve:
    """One group along its evaluated rounds: means over its seeds, and the deviation of several."""

    label: str
    place: int
    rounds: tuple[int, ...]
    sent: tuple[float, ...]
    accuracy: tuple[float, ...]
    average: tuple[float, ...]
    deviation: tuple[float, ...] | None

    @property
    def colour(self) -> int:
        """The place in the palette."""
        return self.place % len(PALETTE)

    @property
    def band(self) -> tuple[list[float], list[float]] | None:
        """One deviation below and above the average, as far as there are percentages."""
        if self.deviation is None:
            return None
        both = list(zip(self.average, self.deviation, strict=True))
        return [max(a - d, 0.0) for a, d in both], [min(a + d, 100.0) for a, d in both]

    @property
    def dashes(self) -> tuple[int, ...]:
        """Lengths of dash and gap; empty for an unbroken line."""
        return DASHES[self.place // len(PALETTE) % len(DASHES)]


def curves_of(groups: Sequence[Group]) -> list[Curve]:
    """A curve for each group with an evaluation; a group keeps its colour whether or not others have one."""
    curves = (_curve(group, place) for place, group in enumerate(groups))
    return [curve for curve in curves if curve.rounds]


def _curve(group: Group, place: int) -> Curve:
    # Only rounds that every seed has evaluated: a mean over fewer and fewer seeds would jump.
    histories = [run.history for run in group.runs if run.history.evaluated]
    evaluated = [{m.round for m in history.evaluated} for history in histories]
    rounds = sorted(set.intersection(*evaluated)) if evaluated else []
    accuracies, averages, sent = [], [], []
    for history in histories:
        at = [m.round for m in history.evaluated]
        accuracies.append(dict(zip(at, history.accuracy, strict=True)))
        averages.append(dict(zip(at, history.moving_average(), strict=True)))
        sent.append(dict(zip((m.round for m in history), history.cumulative_bytes, strict=True)))
    deviation = None
    if len(histories) > 1:
        deviation = tuple(100 * statistics.stdev(each[r] for each in averages) for r in rounds)
    return Curve(
        label=group.label,
        place=place,
        rounds=tuple(rounds),
        sent=tuple(statistics.fmean(each[r] for each in sent) for r in rounds),
        accuracy=tuple(100 * statistics.fmean(each[r] for each in accuracies) for r in rounds),
        average=tuple(100 * statistics.fmean(each[r] for each in averages) for r in rounds),
        deviation=deviation,
    )


def along(curves: Sequence[Curve], axis: Axis) -> tuple[list[tuple[float, ...]], str]:
    """Where each curve's points lie on the axis, in a unit that reads well, and the axis's name."""
    if axis is Axis.ROUNDS:
        return [tuple(map(float, curve.rounds)) for curve in curves], "rounds"
    size, unit = bytes_unit(max((curve.sent[-1] for curve in curves), default=0))
    return [tuple(sent / size for sent in curve.sent) for curve in curves], f"communicated, {unit}"


def heights(curves: Sequence[Curve], targets: Sequence[float]) -> tuple[float, float]:
    """The range of percentages that holds every curve and every target, with a little air."""
    values = [100 * target for target in targets]
    for curve in curves:
        values += [*curve.accuracy, *curve.average]
        for edge in curve.band or ():
            values += edge
    low, high = min(values, default=0.0), max(values, default=100.0)
    air = max(0.04 * (high - low), 0.5)
    return max(low - air, 0.0), min(high + air, 100.0)


def ranking(curves: Sequence[Curve]) -> list[int]:
    """The curves' places from the top down as they end: the order in which a legend is easiest to read."""
    return sorted(range(len(curves)), key=lambda place: -curves[place].average[-1])
