"""What the page's script draws, as JSON: curves, who took part, who holds which labels.

Numbers are rounded to what a screen can show, and there are never more than it can show, so a page stays small for
any runs.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any

import numpy as np

from fedacg.report.labels import Split
from fedacg.report.runs import Run
from fedacg.report.series import Curve, Floats, Track
from fedacg.runs.history import ACCURACY
from fedacg.simulation.metrics import RoundMetrics

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
        "curves": [_curve(curve, max(FEWEST, POINTS // (2 * len(curves)))) for curve in curves],
        "attendances": [_attendance(each, VISITS // len(attendances)) for each in attendances],
        "splits": [_split(split) for split in splits],
    }
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Neither can end the element: < and > occur in strings only.
    return text.replace("<", "\\u003c").replace(">", "\\u003e")


def _curve(curve: Curve, most: int) -> Record:
    return {
        "label": curve.label,
        "colour": curve.style.colour,
        "dashes": curve.style.dashes,
        "bold": curve.style.bold,
        "evaluated": _track(curve.evaluated, most),
        "played": _track(curve.played, most),
        "further": {name: _track(track, most // 4) for name, track in curve.further.items()},
    }


def _track(track: Track, most: int) -> Record:
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


def _split(split: Split) -> Record:
    held, order = split.held, split.held.order
    counts = held.counts[order].tolist() if held.counts.size <= CELLS else []
    return {"clients": held.clients[order].tolist(), "counts": counts}
