"""What a sweep found: the report on its runs, with the effect of the settings as a picture and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedacg import report
from fedacg.bench.grid import Axis, Point
from fedacg.report.cells import ABSENT
from fedacg.report.page import Chapter, Picture
from fedacg.report.pictures import render
from fedacg.report.runs import load_run
from fedacg.report.style import by_place
from fedacg.report.table import Spread
from fedacg.runs.history import History

_LOGARITHMIC = 30
"""Positive numbers that span more than this factor are drawn on a logarithmic axis."""


@dataclass(frozen=True)
class Dot:
    """A point of the picture: a value of the key, which line it is on, and the accuracy in percent."""

    value: str
    line: str
    accuracy: Spread | None
    """None if a run did not reach the last round."""


@dataclass(frozen=True)
class Effect:
    """The effect of one key."""

    key: str
    dots: Sequence[Dot]
    part: str = "test"
    """Of which data the accuracy is: `test`, or `validation` where such are held out to choose by."""

    @property
    def files(self) -> dict[str, bytes]:
        """The picture for papers."""
        return {f"effect.{kind}": render(self._figure, kind) for kind in ("png", "pdf")}

    @property
    def picture(self) -> Picture:
        """The picture for a page."""
        said = [
            f"{dot.line} {self.key}={dot.value}: {dot.accuracy.mean:.2f} %".strip()
            for dot in self.dots
            if dot.accuracy
        ]
        return Picture(
            name="effect",
            title=f"Effect of {self.key}",
            caption=f"{_figure(self.part)} in the last round for each value of {self.key}.",
            alt="; ".join(said) or "No run has finished.",
            png=render(self._figure, "png"),
        )

    @cached_property
    def _figure(self) -> Figure:
        figure = Figure(figsize=(6, 3.8), layout="constrained")
        axes = figure.add_subplot()
        values = list(dict.fromkeys(dot.value for dot in self.dots))
        numbers = _numbers(values)
        places = dict(zip(values, numbers or range(len(values)), strict=True))
        for number, line in enumerate(dict.fromkeys(dot.line for dot in self.dots)):
            points = [(places[dot.value], dot.accuracy) for dot in self.dots if dot.line == line and dot.accuracy]
            points.sort(key=lambda point: point[0])
            axes.errorbar(
                [place for place, _ in points],
                [accuracy.mean for _, accuracy in points],
                yerr=[accuracy.std or 0.0 for _, accuracy in points],
                label=line,
                color=by_place(number).paper,
                marker="o",
                capsize=3,
                # Categories have no order, and no line between them.
                linestyle=(0, by_place(number).dashes) if numbers else "none",
            )
        if numbers and min(numbers) > 0 and max(numbers) > _LOGARITHMIC * min(numbers):
            axes.set_xscale("log")
        axes.set_xticks(list(places.values()), labels=values)
        axes.minorticks_off()
        axes.set_xlabel(self.key)
        axes.set_ylabel(f"{self.part} accuracy at the end,\nmoving average, %")
        axes.grid(color="#e4e4e4", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if len({dot.line for dot in self.dots}) > 1:
            legend = figure.legend(loc="outside right upper", frameon=False, fontsize=9)
            for text in legend.get_texts():
                text.set_parse_math(False)
        return figure


@dataclass(frozen=True)
class HeatMap:
    """The effect of two keys together: a cell for each pair of values."""

    axes: tuple[Axis, Axis]
    ends: Mapping[tuple[str, str], Spread | None]
    part: str = "test"

    @property
    def files(self) -> dict[str, bytes]:
        """The picture for papers."""
        return {f"heatmap.{kind}": render(self._figure, kind) for kind in ("png", "pdf")}

    @property
    def picture(self) -> Picture:
        """The picture for a page."""
        across, down = (axis.key for axis in self.axes)
        said = [
            f"{across}={one}, {down}={other}: {end.mean:.2f} %" for (one, other), end in self.ends.items() if end
        ]
        return Picture(
            name="heatmap",
            title=f"{across} and {down}",
            caption=f"{_figure(self.part)} in the last round for each pair; the best is framed, "
            "a dash means no result.",
            alt="; ".join(said) or "No run has finished.",
            png=render(self._figure, "png"),
        )

    @cached_property
    def _figure(self) -> Figure:
        across, down = self.axes
        values = np.full((len(down.values), len(across.values)), np.nan)
        for (one, other), end in self.ends.items():
            if end:
                values[down.values.index(other), across.values.index(one)] = end.mean
        wide, high = len(across.values), len(down.values)
        figure = Figure(figsize=(max(6.0, 2.4 + 0.85 * wide), 1.5 + 0.55 * high), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(values, cmap="cividis", aspect="auto", origin="lower")
        middle = float(np.nanmean([np.nanmin(values), np.nanmax(values)])) if np.isfinite(values).any() else 0.0
        for (row, column), value in np.ndenumerate(values):
            text = f"{value:.1f}" if np.isfinite(value) else ABSENT
            colour = "#ffffff" if np.isfinite(value) and value < middle else "#1b2129"
            axes.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
        if np.isfinite(values).any():
            row, column = np.unravel_index(int(np.nanargmax(values)), values.shape)
            frame = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#d55e00", linewidth=2.5)
            axes.add_patch(frame)
        axes.set_xticks(range(wide), labels=list(across.values))
        axes.set_yticks(range(high), labels=list(down.values))
        axes.set_xlabel(across.key)
        axes.set_ylabel(down.key)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, label=f"{self.part} accuracy at the end,\nmoving average, %")
        return figure


def _numbers(values: Sequence[str]) -> list[float]:
    """The values as numbers; none if any is a word."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return []


def write(axes: Sequence[Axis], points: Sequence[Point], out: Path) -> report.Report:
    """Report on the runs of a grid into `out`, with effect.png, effect.pdf and sweep.csv beside the page.

    A grid of two keys has a heat map as well. Where data are held out to choose by, effects are by these.
    """
    held_out = any(run.data.validation for point in points for run in point.runs.values())
    part = "validation" if held_out else "test"
    ends = [_end(point, part) for point in points]
    first, *others = axes
    dots = [
        Dot(point.values[0], _line(others, point.values[1:]), end) for point, end in zip(points, ends, strict=True)
    ]
    effect = Effect(first.key, dots, part)
    words = f"The final {_figure(part).lower()} over the grid; bars are standard deviations over seeds." + (
        " The test accuracy, in the table above, chooses nothing." if held_out else ""
    )
    pictures, files = [effect.picture], {**effect.files, "sweep.csv": _csv(axes, points, ends, part).encode()}
    if len(axes) == 2 and all(len(axis.values) > 1 for axis in axes):
        pairs = {(point.values[0], point.values[1]): end for point, end in zip(points, ends, strict=True)}
        heat = HeatMap((axes[0], axes[1]), pairs, part)
        pictures, files = [*pictures, heat.picture], {**files, **heat.files}
    chapter = Chapter("Effect", words, [], pictures)
    return report.write([folder for point in points for folder in point.runs], out, None, chapter, files)


def _figure(part: str) -> str:
    return f"Moving average of the {part} accuracy"


def _end(point: Point, part: str) -> Spread | None:
    """Over all seeds or not at all, as everywhere."""
    histories = [load_run(folder).history for folder in point.runs]
    rounds = next(iter(point.runs.values())).rounds
    if part == "test":
        return average_at(histories, rounds)
    averages = [each.moving_average(figure="validation/accuracy") for each in histories if each.rounds >= rounds]
    ends = [100 * average[-1] for average in averages if average]
    return Spread.over(ends) if len(ends) == len(histories) else None


def _line(axes: Sequence[Axis], values: Sequence[str]) -> str:
    return ", ".join(f"{axis.key}={value}" for axis, value in zip(axes, values, strict=True))


def _csv(axes: Sequence[Axis], points: Sequence[Point], ends: Sequence[Spread | None], part: str) -> str:
    """A row for each point of the grid, full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = "moving_average_percent" if part == "test" else f"{part}_moving_average_percent"
    writer.writerow([*(axis.key for axis in axes), "seeds", head, f"{head}_std"])
    for point, end in zip(points, ends, strict=True):
        mean, std = (end.mean, end.std) if end else (None, None)
        writer.writerow([*point.values, len(point.runs), mean, std])
    return out.getvalue()


def average_at(runs: Sequence[History], round: int) -> Spread | None:
    """Over all seeds or not at all: a run that did not get there must not make the others look better."""
    averages = [history.moving_average_at(round) for history in runs if history.rounds >= round]
    values = [100 * average for average in averages if average is not None]
    return Spread.over(values) if len(values) == len(runs) else None
