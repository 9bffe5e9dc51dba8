"""The curves of a report as numbers, with the colour each keeps: what both the pictures and the page draw.

Nothing is drawn here. Accuracies are in percent from here on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fedacg.config.experiment import show
from fedacg.config.fields import Goal
from fedacg.errors import InputError
from fedacg.report.cells import Column, columns_of
from fedacg.report.runs import Group, Run, cautions, goals_of, targets_of
from fedacg.report.style import Style, styles_of
from fedacg.report.table import Row, headline, rows_of
from fedacg.runs.history import ACCURACY, History, Shown, bytes_unit

Floats = NDArray[np.float64]
Figures = Mapping[str, Sequence[float]]
"""What a run measured, by name; "rounds" says when."""

DRIFT = ("divergence_relative", "cosine")
"""Figures on the spread of local models that can be compared between methods."""


class Axis(StrEnum):
    """What a curve runs along."""

    ROUNDS = "rounds"
    BYTES = "bytes"
    SECONDS = "seconds"


@dataclass(frozen=True)
class Means:
    """A figure at some rounds: the mean over the seeds of a group, and the deviation of several."""

    mean: Floats
    deviation: Floats | None
    percent: bool = True
    seeds: tuple[Floats, ...] = ()
    """The single ones, where there are several."""

    @property
    def band(self) -> tuple[Floats, Floats] | None:
        """One deviation below and above the mean; percentages stay within 0 and 100."""
        if self.deviation is None:
            return None
        low, high = self.mean - self.deviation, self.mean + self.deviation
        if not self.percent:
            return low, high
        return np.maximum(low, 0), np.minimum(high, 100)


@dataclass(frozen=True)
class Track:
    """Some rounds, what had been spent by their ends, and what was measured there."""

    rounds: tuple[int, ...]
    sent: Floats
    seconds: Floats
    figures: Mapping[str, Means]

    def __getitem__(self, name: str) -> Means:
        return self.figures[name]


@dataclass(frozen=True)
class Curve:
    """One group of runs along its rounds."""

    label: str
    style: Style
    evaluated: Track
    """The figures `accuracy`, `average` and `loss` of the rounds that have the figure that is shown."""
    played: Track
    """The figure `training`: the training loss of every round."""
    shown: Shown = ACCURACY
    """What `accuracy` and `average` are of; another figure where the runs have no accuracy."""

    further: Mapping[str, Track] = field(default_factory=dict)
    """The figure `value` of each score, and of how the local models spread."""


def curves_of(groups: Sequence[Group]) -> list[Curve]:
    """A curve for each group with an evaluation; a group keeps its colour whether or not others have one."""
    shown = Shown.of(run.history for group in groups for run in group.runs)
    styles = styles_of([group.method for group in groups])
    curves = [_curve(group, style, shown) for group, style in zip(groups, styles, strict=True)]
    return [curve for curve in curves if curve.evaluated.rounds]


def _curve(group: Group, style: Style, shown: Shown) -> Curve:
    histories = [run.history for run in group.runs]
    evaluated = _track(histories, _evaluated(shown))
    if not shown.percent:
        loose = {name: replace(means, percent=False) for name, means in evaluated.figures.items()}
        evaluated = replace(evaluated, figures=loose)
    further = {name: _track(histories, _further(name)) for name in further_figures(histories)}
    return Curve(group.label, style, evaluated, _track(histories, _played), shown, further)


def further_figures(histories: Sequence[History]) -> list[str]:
    """Figures beyond accuracy and losses that any of these runs has: scores by their names, and drift."""
    scores = list(dict.fromkeys(name for history in histories for name in history.score_names))
    drift = [name for name in DRIFT if any(m.drift and name in m.drift for h in histories for m in h)]
    return [*scores, *(f"drift/{name}" for name in drift)]


def _further(name: str) -> Callable[[History], Figures]:
    def measure(history: History) -> Figures:
        kind, _, figure = name.partition("/")
        if kind == "drift":
            found = {m.round: float((m.drift or {}).get(figure, np.nan)) for m in history}
        else:
            found = history.series(name)
        known = {number: value for number, value in found.items() if np.isfinite(value)}
        return {"rounds": list(known), "value": list(known.values())}

    return measure


def _evaluated(shown: Shown) -> Callable[[History], Figures]:
    def measure(history: History) -> Figures:
        values = history.series(shown.name)
        losses = history.series("test_loss")
        return {
            "rounds": list(values),
            "accuracy": [shown.scale * value for value in values.values()],
            "average": [shown.scale * average for average in history.moving_average(figure=shown.name)],
            "loss": [losses.get(number, np.nan) for number in values],
        }

    return measure


def _played(history: History) -> Figures:
    rounds = [m for m in history if m.arrived]
    return {"rounds": [m.round for m in rounds], "training": [m.train_loss for m in rounds]}


def _track(histories: Sequence[History], measure: Callable[[History], Figures]) -> Track:
    """Means over the seeds at the rounds that every seed has: over fewer and fewer seeds they would jump."""
    names = [name for name in measure(History()) if name != "rounds"]
    seeds = [(history, figures) for history in histories if (figures := measure(history))["rounds"]]
    common = set.intersection(*(set(figures["rounds"]) for _, figures in seeds)) if seeds else set()
    rounds = np.array(sorted(common), dtype=int)
    sent, seconds = [], []
    values: dict[str, list[Floats]] = {name: [] for name in names}
    for history, figures in seeds:
        ends = np.searchsorted([m.round for m in history], rounds)
        times = (m.seconds_train + m.seconds_aggregate + m.seconds_evaluate for m in history)
        sent.append(np.array(history.cumulative_bytes, dtype=float)[ends])
        seconds.append(np.array(list(accumulate(times)))[ends])
        places = np.searchsorted(figures["rounds"], rounds)
        for name in names:
            values[name].append(np.array(figures[name], dtype=float)[places])
    means = {name: _means(each) for name, each in values.items()}
    return Track(tuple(rounds.tolist()), _means(sent).mean, _means(seconds).mean, means)


def _means(seeds: Sequence[Floats]) -> Means:
    if not seeds:
        return Means(np.empty(0), None)
    # A diverged loss may be too large to be squared; the page shows no number there.
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = np.std(seeds, axis=0, ddof=1) if len(seeds) > 1 else None
        return Means(np.mean(seeds, axis=0), deviation, seeds=tuple(seeds) if len(seeds) > 1 else ())


def along(curves: Sequence[Curve], axis: Axis) -> tuple[list[Floats], str]:
    """Where each curve's evaluations lie on the axis, in a unit that reads well, and the axis's name."""
    if axis is Axis.ROUNDS:
        return [np.array(curve.evaluated.rounds, dtype=float) for curve in curves], "rounds"
    if axis is Axis.SECONDS:
        last = max((curve.evaluated.seconds[-1] for curve in curves), default=0)
        size, unit = next(((s, u) for s, u in ((3600, "hours"), (60, "minutes")) if last >= 3 * s), (1, "seconds"))
        return [curve.evaluated.seconds / size for curve in curves], unit
    size, unit = bytes_unit(max((curve.evaluated.sent[-1] for curve in curves), default=0))
    return [curve.evaluated.sent / size for curve in curves], f"communicated, {unit}"


def heights(curves: Sequence[Curve], targets: Sequence[float]) -> tuple[float, float]:
    """The range of every curve and, for percentages, every target, with a small margin."""
    percent = all(curve.shown.percent for curve in curves)
    values = [100 * target for target in targets] if percent else []
    for curve in curves:
        accuracy, average = curve.evaluated["accuracy"], curve.evaluated["average"]
        for each in (accuracy.mean, average.mean, *(average.band or ())):
            values += [float(each.min()), float(each.max())]
    low, high = min(values, default=0.0), max(values, default=100.0)
    if not percent:
        air = 0.04 * (high - low) or 0.5
        return low - air if low < 0 else max(low - air, 0.0), high + air
    air = max(0.04 * (high - low), 0.5)
    return max(low - air, 0.0), min(high + air, 100.0)


def ranking(curves: Sequence[Curve]) -> list[int]:
    """The curves' places from the top down as they end: the order in which a legend is easiest to read."""

    return sorted(range(len(curves)), key=lambda place: -curves[place].evaluated["average"].mean[-1])


@dataclass(frozen=True)
class Material:
    """Groups of runs with everything a report says about them."""

    groups: tuple[Group, ...]
    targets: tuple[float, ...]
    notes: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    curves: tuple[Curve, ...]
    headline: str = ""
    """Which method won and by how much; empty if undecided."""

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]


def checked(targets: Sequence[float]) -> list[float]:
    """Targets in their order, each once; refused unless they are fractions."""
    for target in targets:
        if not 0 < target <= 1:
            raise InputError(f"target {target:g}: a target is a fraction above 0 and up to 1, such as 0.9")
    return sorted(set(targets))


def gather(groups: Sequence[Group], targets: Sequence[float] | None) -> Material:
    """Measure the groups; without targets, by those that the experiments name."""
    runs = [run for group in groups for run in group.runs]
    goals = checked(targets_of(runs) if targets is None else targets)
    rows = rows_of(groups, [*map(Goal.accuracy, goals), *goals_of(runs)])
    several_data_sets = len({show(run.settings.get("data.name")) for run in runs}) > 1
    return Material(
        groups=tuple(groups),
        targets=tuple(goals),
        notes=(*cautions(groups), *(note for run in runs for note in run.notes)),
        rows=tuple(rows),
        columns=tuple(columns_of(rows, goals, ranked=not several_data_sets)),
        curves=tuple(curves_of(groups)),
        headline="" if several_data_sets else headline(rows, goals, over=all(run.summary for run in runs)),
    )
