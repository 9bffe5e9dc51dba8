"""Pictures of figures over rounds and layers: weight divergence, CKA, stability, drift.

They take numbers and know nothing of runs; `surfaces` draws the loss surface. Only Figure objects are used,
never pyplot, as in the report.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from fedacg.report.style import Style

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ink:
    """How a group is drawn: as in the curves of the report."""

    label: str
    place: int
    style: Style

    @property
    def colour(self) -> str:
        return self.style.paper

    @property
    def dashes(self) -> tuple[int, ...]:
        """Lengths of dash and gap; empty for an unbroken line."""
        return self.style.dashes


@dataclass(frozen=True)
class Line:
    """A figure of one group along rounds or layers: the mean over its seeds, and the deviation of several."""

    ink: Ink
    xs: Floats
    ys: Floats
    deviation: Floats | None = None

    @property
    def smooth(self) -> Floats:
        """The mean over neighbouring rounds: up to a fortieth of all rounds on either side."""
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


INK, GRID = "#333333", "#e4e4e4"
_WIDTH = 7.5
_MOST_ROUNDS = 8
"""Number of recorded rounds that are drawn; of more, an even choice."""


def divergence(whole: Sequence[Line], parts: Mapping[str, Sequence[Line]]) -> Figure:
    """The relative divergence of the whole model above; small panels below for every stage and the head."""
    columns = min(max(len(parts), 1), 4)
    rows = -(-len(parts) // columns)
    figure = Figure(figsize=(_WIDTH, 3.4 + 1.5 * rows), layout="constrained")
    if not parts:
        axes = figure.add_subplot()
    else:
        (above,), (below,) = figure.subfigures(2, 1, squeeze=False, height_ratios=[2.9, 0.4 + 1.5 * rows])
        axes = above.add_subplot()
        panels = below.subplots(rows, columns, sharex=True, squeeze=False)
        for panel, (name, lines) in zip(panels.flat, parts.items(), strict=False):
            for line in lines:
                _stroke(panel, line.ink, line.xs, line.smooth, width=1.3)
            dress(panel)
            panel.set_title(name, fontsize=9, color=INK, pad=3, loc="left")
            panel.set_ylim(bottom=0)
            panel.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
            panel.yaxis.set_major_locator(MaxNLocator(nbins=3))
            panel.tick_params(labelsize=8)
        for panel in panels.flat[len(parts) :]:
            panel.remove()
        below.supxlabel("rounds", fontsize=10, color=INK)
        below.supylabel("divergence of the parts", fontsize=9, color=INK)
    for line in whole:
        _curve(axes, line)
    _along_rounds(axes, "weight divergence,\nrelative to the mean model")
    axes.set_ylim(bottom=0)
    _legend(figure, [line.ink for line in whole])
    return figure


def cka(layers: Sequence[str], lines: Sequence[Line], round: int) -> Figure:
    """The mean similarity of the local models' features, layer by layer."""
    figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for line in lines:
        _stroke(axes, line.ink, line.xs, line.ys, marker="o")
        _band(axes, line, line.ys)
    crowded = len(layers) > 8
    axes.set_xticks(range(len(layers)), layers, rotation=35 if crowded else 0, ha="right" if crowded else "center")
    axes.set_xlim(-0.3, len(layers) - 0.7)
    # Local models that started from one broadcast are often nearly alike, so the space below them would be empty.
    lowest = min([0.99, *(float(y) for line in lines for y in line.ys if np.isfinite(y))])
    axes.set_ylim(lowest - 0.15 * (1 - lowest), 1 + 0.05 * (1 - lowest))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_ylabel(f"CKA between local models,\nround {round}", color=INK)
    dress(axes)
    _legend(figure, [line.ink for line in lines])
    return figure


@dataclass(frozen=True)
class Steadiness:
    """(Acc − moving average)² of one group along its evaluated rounds, and its mean over all of them."""

    squares: Line
    mean: float
    deviation: float | None
    """Of the means of several seeds."""


def stability(groups: Sequence[Steadiness]) -> Figure:
    """(Acc − moving average)² along rounds, and as bars its mean over all of them."""
    figure = Figure(figsize=(_WIDTH, 3.8), layout="constrained")
    axes, bars = figure.subplots(1, 2, width_ratios=[2.2, 1])
    for group in groups:
        _stroke(axes, group.squares.ink, group.squares.xs, group.squares.smooth)
    if any(group.squares.ys.any() for group in groups):
        # Logarithmic, or the rise of the first rounds would flatten everything after it.
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    _along_rounds(axes, "(accuracy − moving average)²,\npercentage points squared")
    places = np.arange(len(groups))
    for place, group in zip(places, groups, strict=True):
        bars.barh(
            place,
            group.mean,
            0.62,
            xerr=group.deviation,
            color=group.squares.ink.colour,
            error_kw={"ecolor": INK, "elinewidth": 1},
        )
        bars.annotate(
            f"{group.mean:.3g}",
            xy=(group.mean + (group.deviation or 0.0), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=INK,
        )
    bars.set_yticks([])
    bars.set_ylim(len(groups) - 0.4, -0.6)
    bars.margins(x=0.22)
    bars.xaxis.set_major_locator(MaxNLocator(nbins=4))
    bars.set_xlabel("mean over all rounds", color=INK)
    dress(bars, along="x")
    _legend(figure, [group.squares.ink for group in groups])
    return figure


@dataclass(frozen=True)
class Strip:
    """The cosines of one group's clients in one recorded round, one at least."""

    ink: Ink
    round: int
    cosines: Floats


def drift(means: Sequence[Line], strips: Sequence[Strip]) -> Figure:
    """The mean cosine along all rounds, and beside it every client's in the recorded rounds."""
    rounds = sorted({strip.round for strip in strips})
    figure = Figure(figsize=(_WIDTH, 3.8), layout="constrained")
    if rounds:
        axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=[1.3, 1])
        _strips(beside, strips, _evenly(rounds))
    else:
        axes = figure.add_subplot()
    for line in means:
        _curve(axes, line)
    _along_rounds(axes, "cosine of client updates\nwith the mean update")
    axes.set_title("mean of the cohort, every round", fontsize=10, color=INK, loc="left")
    values = [line.ys for line in means] + [strip.cosines for strip in strips]
    low = min((float(each.min()) for each in values if len(each)), default=0.0)
    axes.set_ylim(min(0.0, low - 0.05), 1.02)
    _legend(figure, [line.ink for line in means])
    return figure


def _strips(axes: Axes, strips: Sequence[Strip], rounds: Sequence[int]) -> None:
    """A dot per client and a bar for their mean, the groups side by side within a round."""
    groups = sorted({strip.ink.place for strip in strips})
    lane = 0.8 / len(groups)
    for strip in strips:
        if strip.round not in rounds:
            continue
        middle = rounds.index(strip.round) - 0.4 + lane * (groups.index(strip.ink.place) + 0.5)
        # Side by side in the order of the cohort, so that equal cosines do not hide one another.
        across = np.linspace(-0.3, 0.3, len(strip.cosines)) if len(strip.cosines) > 1 else np.zeros(1)
        axes.plot(
            middle + lane * across, strip.cosines, "o", color=strip.ink.colour, ms=3.5, alpha=0.65, mew=0, ls=""
        )
        mean = float(strip.cosines.mean())
        axes.plot([middle - 0.42 * lane, middle + 0.42 * lane], [mean, mean], color=strip.ink.colour, linewidth=2)
    for edge in range(1, len(rounds)):
        axes.axvline(edge - 0.5, color=GRID, linewidth=0.7)
    axes.set_xticks(range(len(rounds)), [str(round) for round in rounds])
    axes.set_xlim(-0.5, len(rounds) - 0.5)
    axes.set_xlabel("recorded rounds", color=INK)
    axes.set_title("every client", fontsize=10, color=INK, loc="left")
    dress(axes)


def _evenly(rounds: Sequence[int]) -> list[int]:
    if len(rounds) <= _MOST_ROUNDS:
        return list(rounds)
    places = np.linspace(0, len(rounds) - 1, _MOST_ROUNDS).round().astype(int)
    return [rounds[place] for place in places]


def _curve(axes: Axes, line: Line) -> None:
    """A figure of every round: the raw values faint, and on top their mean over neighbouring rounds."""
    smooth = line.smooth
    if not np.array_equal(smooth, line.ys):
        axes.plot(line.xs, line.ys, color=line.ink.colour, alpha=0.25, linewidth=0.8)
    _stroke(axes, line.ink, line.xs, smooth, marker="o" if len(line.xs) == 1 else "")
    _band(axes, line, smooth)


def _band(axes: Axes, line: Line, middle: Floats) -> None:
    if line.deviation is not None:
        width = Line(line.ink, line.xs, line.deviation).smooth
        axes.fill_between(line.xs, middle - width, middle + width, color=line.ink.colour, alpha=0.15, linewidth=0)


def _stroke(axes: Axes, ink: Ink, xs: Floats, ys: Floats, *, width: float = 1.8, marker: str = "") -> None:
    (drawn,) = axes.plot(xs, ys, color=ink.colour, linewidth=width, marker=marker, markersize=4)
    if ink.dashes:
        drawn.set_dashes(list(ink.dashes))


def _along_rounds(axes: Axes, name: str) -> None:
    axes.set_xlabel("rounds", color=INK)
    axes.set_ylabel(name, color=INK)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    dress(axes)


def dress(axes: Axes, along: str = "y") -> None:
    """The common plain style of all pictures."""
    axes.grid(axis="x" if along == "x" else "y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


def _legend(figure: Figure, inks: Sequence[Ink]) -> None:
    handles = []
    for ink in inks:
        handle = Line2D([], [], color=ink.colour, linewidth=2)
        if ink.dashes:
            handle.set_dashes(list(ink.dashes))
        handles.append(handle)
    longest = max((len(ink.label) for ink in inks), default=1)
    legend = figure.legend(
        handles,
        [ink.label for ink in inks],
        loc="outside upper center",
        ncols=max(1, min(len(inks), 90 // (longest + 8))),
        frameon=False,
        fontsize=9,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
