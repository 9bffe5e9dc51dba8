"""What an analysis hands over: pictures with their words, numbers as CSV, and columns of the summary.

Each analysis makes one `Finding`, and tells a `Watcher` how far it is; `run` puts them together.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from matplotlib.figure import Figure

from fedacg.analysis.load import Subject
from fedacg.core.text import csv_text
from fedacg.report.cells import ABSENT, Cell, Column
from fedacg.report.table import Spread


class Watcher(Protocol):
    """Someone who looks on while an analysis takes its time."""

    def estimate(self, work: str, seconds: float) -> None:
        """How long some work will take in all, told before it begins."""
        ...

    def work(self, name: str, steps: int) -> AbstractContextManager[Callable[[], None]]:
        """Some work for as long as the block lasts; to be called after each of its steps."""
        ...


@dataclass(frozen=True)
class Drawing:
    """A picture and the words that go with it on the page."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure


@dataclass(frozen=True)
class Finding:
    """The result of one analysis."""

    drawings: Sequence[Drawing]
    tables: Mapping[str, str]
    """CSV by the name of its file."""
    columns: Sequence[Column]
    """Of the summary: a row for every group of runs."""


def to_csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers in full precision; what is absent or not finite is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: object) -> object:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return csv_text(value) if isinstance(value, str) else value


def by_group(subjects: Sequence[Subject]) -> list[list[Subject]]:
    """The runs that differ only in the seed together."""
    groups: dict[int, list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(subject.ink.place, []).append(subject)
    return list(groups.values())


def summary_column(
    heading: str,
    subjects: Sequence[Subject],
    values: Sequence[float | None],
    *,
    decimals: int | None = None,
    spare: bool = False,
) -> Column:
    """A figure of every group, in three digits or so many decimals: mean over seeds, and deviation of several."""
    found = dict(zip((subject.folder for subject in subjects), values, strict=True))
    cells = []
    for group in by_group(subjects):
        values_of = [found[subject.folder] for subject in group]
        known = [value for value in values_of if value is not None and math.isfinite(value)]
        cells.append(Cell(_text(Spread.over(known), decimals) if known else ABSENT))
    return Column(heading, tuple(cells), spare)


def _text(spread: Spread, decimals: int | None) -> str:
    if decimals is None:
        decimals = max(0, 2 - math.floor(math.log10(abs(spread.mean)))) if spread.mean else 0
    return f"{spread.mean:.{decimals}f}" + ("" if spread.std is None else f" ±{spread.std:.{decimals}f}")
