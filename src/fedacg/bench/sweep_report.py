"""What a sweep found: the report on its runs, with the effect of the settings as a picture and as CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from fedacg import report
from fedacg.bench.comparison import average_at
from fedacg.bench.effect import Dot, Effect
from fedacg.bench.grid import Axis, Point
from fedacg.report.page import Chapter
from fedacg.report.runs import load_run
from fedacg.report.table import Spread


def write(axes: Sequence[Axis], points: Sequence[Point], out: Path) -> report.Report:
    """Report on the runs of a grid into `out`, with effect.png, effect.pdf and sweep.csv beside the page."""
    ends = [_end(point) for point in points]
    first, *others = axes
    dots = [
        Dot(point.values[0], _line(others, point.values[1:]), end) for point, end in zip(points, ends, strict=True)
    ]
    effect = Effect(first.key, dots)
    words = "The final moving average of the test accuracy over the grid; bars are standard deviations over seeds."
    chapter = Chapter("Effect", words, [], [effect.picture])
    files = {**effect.files, "sweep.csv": _csv(axes, points, ends).encode()}
    return report.write([folder for point in points for folder in point.runs], out, None, chapter, files)


def _end(point: Point) -> Spread | None:
    rounds = next(iter(point.runs.values())).rounds
    return average_at([load_run(folder).history for folder in point.runs], rounds)


def _line(axes: Sequence[Axis], values: Sequence[str]) -> str:
    return ", ".join(f"{axis.key}={value}" for axis, value in zip(axes, values, strict=True))


def _csv(axes: Sequence[Axis], points: Sequence[Point], ends: Sequence[Spread | None]) -> str:
    """A row for each point of the grid, full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [*(axis.key for axis in axes), "seeds", "moving_average_percent", "moving_average_percent_std"]
    )
    for point, end in zip(points, ends, strict=True):
        seeds = " ".join(str(experiment.seed) for experiment in point.runs.values())
        mean, std = (end.mean, end.std) if end else (None, None)
        writer.writerow([*point.values, seeds, mean, std])
    return out.getvalue()
