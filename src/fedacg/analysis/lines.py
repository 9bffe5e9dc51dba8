"""Figures of several runs as lines: the mean over the seeds of a group, smoothed where rounds are many.

A group has the colour and the dashes that it has in the report. Drawing is in `pictures`.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedacg.report.series import DASHES, PALETTE

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ink:
    """How a group is drawn: by its place among the groups, as in the curves of the report."""

    label: str
    place: int

    @property
    def colour(self) -> str:
        return PALETTE[self.place % len(PALETTE)][0]

    @property
    def dashes(self) -> tuple[int, ...]:
        """Lengths of dash and gap; empty for an unbroken line."""
        return DASHES[self.place // len(PALETTE) % len(DASHES)]


@dataclass(frozen=True)
class Line:
    """A figure of one group along rounds or layers: the mean over its seeds, and the deviation of several."""

    ink: Ink
    xs: Floats
    ys: Floats
    deviation: Floats | None = None

    @property
    def smooth(self) -> Floats:
        """The mean over the rounds around each: up to a fortieth of all of them on either side."""
        reach, number = len(self.ys) // 40, len(self.ys)
        return np.array([self.ys[max(0, at - reach) : at + reach + 1].mean() for at in range(number)])


def over_seeds(ink: Ink, seeds: Sequence[Mapping[int, float]]) -> Line:
    """The line of a group from the figures of its runs, by round: at the rounds that every run has."""
    having = [seed for seed in seeds if seed]
    xs = sorted(set.intersection(*(set(seed) for seed in having))) if having else []
    columns = [[seed[x] for seed in having] for x in xs]
    deviation = None
    if len(having) > 1:
        deviation = np.array([statistics.stdev(column) for column in columns])
    return Line(ink, np.array(xs, float), np.array([statistics.fmean(c) for c in columns]), deviation)
