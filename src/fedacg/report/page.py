"""The report as one HTML file that needs nothing else: no network, no server.

Gathers what the templates in `web` show and what the script draws, and embeds style and script. The text about the
runs comes from `page_text`. Numbers for the script are rounded to what a screen can show, and there are
never more than it can show, so a page stays small for any runs.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from operator import eq
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from fedacg import __version__
from fedacg.report.cells import Cell, Column, to_latex
from fedacg.report.labels import Split
from fedacg.report.page_text import Facts, SplitPicture, data_url
from fedacg.report.runs import Run
from fedacg.report.series import Curve, Floats, Material, Track, further_figures
from fedacg.report.style import PALETTE
from fedacg.report.table import to_csv
from fedacg.runs.history import ACCURACY
from fedacg.runs.session import PlannedRun
from fedacg.simulation.metrics import RoundMetrics

SCRIPTS = ("scale.js", "table.js", "chart.js", "download.js", "split.js", "attendance.js", "live.js", "main.js")
"""The page's script in the order in which its parts build on one another."""
CHOICES = (
    (
        "figure",
        "What is drawn",
        (
            ("average", "Moving average"),
            ("accuracy", "Accuracy"),
            ("loss", "Test loss"),
            ("training", "Training loss"),
        ),
    ),
    ("axis", "Along", (("rounds", "Rounds"), ("bytes", "Bytes"), ("seconds", "Time"))),
    ("scale", "Scale", (("linear", "Linear"), ("log", "Log"))),
)


@dataclass(frozen=True)
class Picture:
    """A picture from another module, with its title and caption."""

    name: str
    title: str
    caption: str
    alt: str
    """Alternative text for readers who cannot see it."""
    png: bytes

    @property
    def source(self) -> str:
        """The picture itself as an address, so that the page stays one file."""
        return data_url(self.png)


@dataclass(frozen=True)
class Chapter:
    """A chapter of the page from another module: text, a table and pictures."""

    title: str
    words: str
    columns: Sequence[Column]
    pictures: Sequence[Picture]

    @property
    def rows(self) -> list[tuple[None, tuple[Cell, ...]]]:
        return [(None, cells) for cells in zip(*(column.cells for column in self.columns), strict=True)]


@dataclass(frozen=True)
class Splits:
    """The splits that a page shows, and why others are missing."""

    found: Sequence[Split] = ()
    missing: Sequence[str] = ()


def render(
    material: Material,
    splits: Splits,
    *,
    chapters: Sequence[Chapter] = (),
    picture: bytes | None = None,
    version: str = "",
    coming: Sequence[PlannedRun] = (),
) -> str:
    """The page as text; everything that comes from a run is escaped.

    `picture` shows the curves if scripts are disabled. A page with a `version` is a live one: its script polls for
    updates.
    """
    script = _script()
    return _template("page.html.jinja").render(
        facts=Facts(material, coming),
        downloads=_downloads(material),
        further=further_figures([run.history for run in material.runs]),
        live=version,
        version=__version__,
        palette=PALETTE,
        choices=_choices(material),
        chapters=chapters,
        picture=data_url(picture) if picture else "",
        pictures=[SplitPicture(split) for split in splits.found],
        missing=splits.missing,
        style=Markup(_asset("page.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=Markup(data(material, splits)),
    )


def _choices(material: Material) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The choices for the curves, with the name of the figure shown instead of an accuracy."""
    shown = material.curves[0].shown if material.curves else None
    other = {"accuracy": shown.title.capitalize()} if shown and shown.name != "test_accuracy" else {}
    return [
        (name, title, [(value, other.get(value, words)) for value, words in options])
        for name, title, options in CHOICES
    ]


def data(material: Material, splits: Splits) -> str:
    """What the page's script draws, as JSON."""
    return to_json(material.curves, material.targets, attendances(material.runs), splits.found)


def _downloads(material: Material) -> list[tuple[str, str, str]]:
    """Downloads of the table for programs and papers: file name, button label, and address."""
    files = {
        "table.csv": ("CSV", "text/csv", to_csv(material.rows, material.targets)),
        "table.tex": ("LaTeX", "application/x-tex", to_latex(material.columns)),
    }
    return [
        (name, words, f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}")
        for name, (words, kind, text) in files.items()
    ]


def parts(material: Material, splits: Splits, coming: Sequence[PlannedRun] = ()) -> dict[str, str]:
    """The parts of a page that change while runs are in progress, by element name."""
    macros: Any = _template("parts.html.jinja").module
    facts = Facts(material, coming)
    named = ("summary", "progress", "settings", "reproduce")
    found = {name: getattr(macros, name)(facts) for name in named}
    found["results"] = macros.results(facts, _downloads(material))
    found["split"] = macros.splits([SplitPicture(split) for split in splits.found], splits.missing)
    return {f"{name}-part": str(html) for name, html in found.items()}


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedacg.report", "web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template(name: str) -> Template:
    return _environment().get_template(name)


@cache
def _asset(name: str) -> str:
    return resources.files("fedacg.report").joinpath("web", name).read_text(encoding="utf-8")


def _script() -> str:
    """All scripts as one, in its own scope."""
    return "\n".join(["(() => {", '"use strict";', *map(_asset, SCRIPTS), "})();"])


# What the page's script draws, as JSON: curves, who took part, who holds which labels


Visit = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""A round: its number, who was asked, who of them did not answer, who did only part of the work."""


@dataclass(frozen=True)
class Attendance:
    """The rounds of one or several runs that all asked the same clients."""

    labels: tuple[str, ...]
    visits: tuple[Visit, ...]
    clients: int
    """The number of clients, as far as the run records it: at least one more than the largest number."""

    @property
    def size(self) -> int:
        """The number of client numbers it takes to list it."""
        return sum(len(asked) + len(lost) + len(slow) for _, asked, lost, slow in self.visits)


def attendances(runs: Sequence[Run]) -> list[Attendance]:
    """The distinct histories among the runs; one that is the beginning of another counts as the same."""
    found: list[Attendance] = []
    for run in runs:
        if not run.history:
            continue
        visits = tuple(map(_visit, run.history))
        named = run.settings.get("data.clients", 0)
        known = max((client for _, asked, _, _ in visits for client in asked), default=-1) + 1
        mine = Attendance((run.label,), visits, max(known, named if isinstance(named, int) else 0))
        for place, other in enumerate(found):
            if all(map(eq, mine.visits, other.visits)):
                found[place] = _together(other, mine)
                break
        else:
            found.append(mine)
    return found


def _visit(metrics: RoundMetrics) -> Visit:
    arrived = set(metrics.arrived)
    lost = tuple(client for client in metrics.cohort if client not in arrived)
    return metrics.round, metrics.cohort, lost, metrics.stragglers or ()


def _together(one: Attendance, other: Attendance) -> Attendance:
    longer = max(one, other, key=lambda each: len(each.visits))
    return Attendance((*one.labels, *other.labels), longer.visits, max(one.clients, other.clients))


POINTS = 60_000
"""Most points of all curves together; more are thinned out evenly."""
FEWEST = 250
"""Least number of points that thinning leaves a curve."""
VISITS = 300_000
"""Client numbers in all histories of who took part; of more, only some rounds are listed."""
CELLS = 120_000
"""Counts of a split that can be read off its picture; of more, only the picture is there."""

Record = dict[str, Any]


def to_json(
    curves: Sequence[Curve],
    targets: Sequence[float],
    attendances: Sequence[Attendance],
    splits: Sequence[Split],
) -> str:
    """One line of strict JSON that may stand inside a script element."""
    shown = curves[0].shown if curves else ACCURACY
    record = {
        "shown": {"title": shown.title, "percent": shown.percent},
        "targets": [_rounded(100 * target, 6) for target in targets],
        "curves": [_curve_json(curve, max(FEWEST, POINTS // (2 * len(curves)))) for curve in curves],
        "attendances": [_attendance(each, VISITS // len(attendances)) for each in attendances],
        "splits": [_split_json(split) for split in splits],
    }
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Neither can end the element: < and > occur in strings only.
    return text.replace("<", "\\u003c").replace(">", "\\u003e")


def _curve_json(curve: Curve, most: int) -> Record:
    return {
        "label": curve.label,
        "colour": curve.style.colour,
        "dashes": curve.style.dashes,
        "bold": curve.style.bold,
        "evaluated": _track_json(curve.evaluated, most),
        "played": _track_json(curve.played, most),
        "further": {name: _track_json(track, most // 4) for name, track in curve.further.items()},
    }


def _track_json(track: Track, most: int) -> Record:
    number = len(track.rounds)
    kept = np.arange(number)
    if number > most:
        kept = np.linspace(0, number - 1, most).round().astype(int)
    record: Record = {
        "rounds": [track.rounds[place] for place in kept],
        "bytes": _numbers(track.sent[kept], 5),
        "seconds": _numbers(track.seconds[kept], 5),
    }
    for name, means in track.figures.items():
        record[name] = _numbers(means.mean[kept], 4)
        if means.deviation is not None:
            record[f"{name}_sd"] = _numbers(means.deviation[kept], 3)
            some = kept[:: max(1, len(means.seeds) * len(kept) // most)]
            record[f"{name}_seeds"] = [_numbers(seed[some], 4) for seed in means.seeds]
            record["seeds_at"] = some.tolist() if len(some) < len(kept) else []
    return record


def _numbers(values: Floats, digits: int) -> list[float | int | None]:
    return [_rounded(value, digits) for value in values.tolist()]


def _rounded(value: float, digits: int) -> float | int | None:
    """Rounded to this many digits, whole numbers as such; None where there is no number."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _attendance(attendance: Attendance, most: int) -> Record:
    every = max(1, math.ceil(attendance.size / most))
    visits = attendance.visits[::every]
    return {
        "labels": attendance.labels,
        "clients": attendance.clients,
        "every": every,
        "rounds": [round for round, *_ in visits],
        "asked": [asked for _, asked, _, _ in visits],
        "lost": _some({round: lost for round, _, lost, _ in visits}),
        "slow": _some({round: slow for round, *_, slow in visits}),
    }


def _some(clients: Mapping[int, Sequence[int]]) -> dict[int, Sequence[int]]:
    return {round: each for round, each in clients.items() if each}


def _split_json(split: Split) -> Record:
    held, order = split.held, split.held.order
    counts = held.counts[order].tolist() if held.counts.size <= CELLS else []
    return {"clients": held.clients[order].tolist(), "counts": counts}
