"""Analyses of runs: why a method works, in numbers and pictures; `analyse` makes them all.

The request is checked first, and the page is written at the end. The mathematics is in plane.py, cka.py and
rounds.py. Figures that every round has without recording are made in `drift`; the recordings themselves are read
by `recording`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedacg import report
from fedacg.analysis import cka, plane, rounds, surfaces
from fedacg.analysis.subjects import (
    LEAD,
    Finding,
    Subject,
    Watcher,
    by_group,
    check_alike,
    check_code,
    check_cohorts,
    check_drift,
    chosen_round,
    read,
)
from fedacg.errors import InputError, unknown
from fedacg.report.cells import Cell, Column, TerminalTable
from fedacg.report.page import Chapter, Picture
from fedacg.report.pictures import render

WHAT = ("surface", "divergence", "cka", "stability", "drift")


@dataclass(frozen=True)
class Options:
    """What is analysed, and in how much detail."""

    what: tuple[str, ...] = WHAT
    round: int | None = None
    """The recorded round; without it, the last that all runs have."""
    resolution: int = 21
    """Points of the surface along each side."""
    examples: int = 1000
    """Training examples of the surface, test examples of CKA."""
    margin: float = 0.4
    """Margin around the models, as a fraction of their extent."""
    error: bool = False
    """Draw the test error as well."""
    clients: tuple[int, ...] | None = None
    """The three whose models span the plane; without them, the first of the cohort."""
    exact: bool = False
    """CKA of all its test examples at once, in memory that grows with them, and not of batches."""
    window: float = 10.0
    """Rounds that the moving average of the accuracy spans."""
    workers: int = 0
    """0 starts one for every core."""
    trust: bool = False
    """Whether code that the runs name, such as a data set's function, may be imported."""

    def __post_init__(self) -> None:
        for name in self.what:
            if name not in WHAT:
                raise unknown("picture", name, WHAT)
        if not self.what:
            raise InputError(f"--what: needs at least one of {', '.join(WHAT)}")
        for name, value, least in (
            ("resolution", self.resolution, 2),
            ("examples", self.examples, 4),
            ("margin", self.margin, 0),
            ("window", self.window, 1),
            ("workers", self.workers, 0),
        ):
            if not least <= value < math.inf:
                raise InputError(f"--{name} {value:g}: must be at least {least}")
        if self.clients is not None and len(set(self.clients)) != surfaces.CORNERS:
            given = ",".join(map(str, self.clients))
            raise InputError(f"--clients {given}: must be three different numbers, as three models span a plane")

    @property
    def grid(self) -> plane.Grid:
        return plane.Grid(self.resolution, self.examples, self.margin, self.error, self.clients, self.workers)


@dataclass(frozen=True)
class Analysis:
    """The findings, the files written, and the table for a terminal."""

    table: TerminalTable
    notes: tuple[str, ...]
    page: Path
    paths: tuple[Path, ...]
    """The pictures and numbers of the analysis."""


def analyse(folders: Sequence[Path], out: Path, options: Options, watcher: Watcher) -> Analysis:
    """Analyse the runs in and below `folders`, and write pictures, numbers and a page into `out`."""
    subjects = read(folders, trust=options.trust)
    round = _check(subjects, options)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: the analysis cannot be written: {error.strerror}") from None

    # The slow analyses come last.
    steps: dict[str, Callable[[], Finding]] = {
        "divergence": lambda: rounds.divergence_of(subjects),
        "stability": lambda: rounds.stability_of(subjects, options.window),
        "drift": lambda: rounds.drift_of(subjects),
        "cka": lambda: cka.cka_of(subjects, round, options.examples, options.exact, watcher),
        "surface": lambda: surfaces.surfaces_of(subjects, round, options.grid, watcher),
    }
    found = {name: step() for name, step in steps.items() if name in options.what}
    findings = [found[name] for name in WHAT if name in found]

    files: dict[str, bytes] = {}
    pictures = []
    for finding in findings:
        for drawing in finding.drawings:
            png = render(drawing.figure, "png")
            files |= {f"{drawing.name}.png": png, f"{drawing.name}.pdf": render(drawing.figure, "pdf")}
            pictures.append(Picture(drawing.name, drawing.title, drawing.caption, drawing.alt, png))
        files |= {name: text.encode() for name, text in finding.tables.items()}
    methods = Column("method", tuple(Cell(group[0].ink.label) for group in by_group(subjects)))
    columns = [methods, *(column for finding in findings for column in finding.columns)]
    chapter = Chapter("Analysis", LEAD, columns, pictures)
    written = report.write(folders, out, chapter=chapter, beside=files)
    return Analysis(TerminalTable(columns), written.notes, out / "index.html", tuple(out / name for name in files))


def _check(subjects: Sequence[Subject], options: Options) -> int:
    """Refuse what cannot be drawn, before anything starts; the recorded round to analyse, 0 if none is needed."""
    if {"divergence", "drift"} & set(options.what):
        check_drift(subjects)
    if not {"surface", "cka"} & set(options.what):
        return 0
    check_alike(subjects)
    check_code(subjects)
    round = chosen_round(subjects, options.round)
    check_cohorts(subjects, round, surfaces.CORNERS if "surface" in options.what else 2, options.clients)
    return round
