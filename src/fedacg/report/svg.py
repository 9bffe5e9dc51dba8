"""The curves of a report as geometry for the page: paths in a square, ticks in percent of its sides.

The template turns it into SVG. Text stays outside the picture as HTML, so that the picture may stretch
to any width and the letters keep their size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from fedacg.report.cells import percent
from fedacg.report.series import Axis, Curve, along, heights, ranking

SIDE = 1000
"""The picture's coordinates run from 0 to this, both ways."""


@dataclass(frozen=True)
class Tick:
    """A text at a distance from the left or from the bottom, in percent."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """One curve as SVG paths; `band` is empty for a single seed."""

    label: str
    colour: int
    dashes: str
    average: str
    accuracy: str
    band: str


@dataclass(frozen=True)
class Chart:
    """All that the template needs to draw one picture."""

    name: str
    title: str
    horizontal: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    targets: tuple[Tick, ...]
    lines: tuple[Line, ...]


def chart(curves: Sequence[Curve], axis: Axis, targets: Sequence[float]) -> Chart:
    """The picture of `curves` along `axis`."""
    places, horizontal = along(curves, axis)
    right = max((xs[-1] for xs in places), default=0.0) or 1.0
    low, high = heights(curves, targets)

    def path(xs: Sequence[float], ys: Sequence[float]) -> str:
        points = [
            f"{SIDE * x / right:.2f} {SIDE * (high - y) / (high - low):.2f}" for x, y in zip(xs, ys, strict=True)
        ]
        # A line of no length, with round ends, is a dot.
        return f"M{'L'.join(points)}" + ("h0" if len(points) == 1 else "")

    def line(curve: Curve, xs: Sequence[float]) -> Line:
        band = ""
        if curve.band is not None:
            lower, upper = curve.band
            band = path([*xs, *reversed(xs)], [*upper, *reversed(lower)]) + "Z"
        return Line(
            label=curve.label,
            colour=curve.colour,
            dashes=" ".join(str(2 * dash) for dash in curve.dashes),
            average=path(xs, curve.average),
            accuracy=path(xs, curve.accuracy),
            band=band,
        )

    return Chart(
        name=axis.value,
        title=f"Test accuracy against {'rounds' if axis is Axis.ROUNDS else 'communication'}",
        horizontal=horizontal,
        x_ticks=_ticks(0.0, right, whole=axis is Axis.ROUNDS),
        y_ticks=_ticks(low, high, whole=False),
        targets=tuple(Tick(_share(100 * target, low, high), percent(target)) for target in targets),
        lines=tuple(line(curves[place], places[place]) for place in ranking(curves)),
    )


def _share(value: float, low: float, high: float) -> float:
    return round(100 * (value - low) / (high - low), 3)


def _ticks(low: float, high: float, whole: bool) -> tuple[Tick, ...]:
    values = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=whole).tick_values(low, high)
    return tuple(Tick(_share(v, low, high), f"{round(v, 9):g}") for v in values if low <= v <= high)
