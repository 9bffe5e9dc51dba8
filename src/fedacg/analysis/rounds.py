"""Analyses of a run's rounds: weight divergence, stability, drift.

All of it comes from `metrics.jsonl`, except the cosines of single clients, which come from recorded rounds.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedacg.analysis import pictures, rounds
from fedacg.analysis.pictures import Line, over_seeds
from fedacg.analysis.subjects import Drawing, Finding, Subject, Words, by_group, summary_column, to_csv
from fedacg.errors import InputError
from fedacg.runs.history import DECAY, History
from fedacg.runs.recording import Recorded
from fedacg.simulation.metrics import RoundMetrics

WHOLE = "whole"
"""The name of the whole model beside its parts."""


def mean(recorded: Recorded) -> Tensor:
    """w̄ = Σ ω_i w_i, in float64."""
    if not recorded.clients:
        raise InputError(f"round {recorded.round}: nobody answered, so there are no local models")
    total = torch.zeros_like(recorded.phi, dtype=torch.float64)
    for weight, w in _locals(recorded):
        total.add_(w, alpha=weight)
    return total


def divergence(recorded: Recorded, parts: Mapping[str, slice], *, relative: bool = False) -> dict[str, float]:
    """√(Σ ω_i ‖w_i − w̄‖²) of the whole model and of each part, or the same over ‖w̄‖ of that part.

    NaN where ‖w̄‖ is zero, as for a part without parameters.
    """
    centre = mean(recorded)
    spans = {WHOLE: slice(None), **parts}
    squares = dict.fromkeys(spans, 0.0)
    for weight, w in _locals(recorded):
        offset = w - centre
        for name, span in spans.items():
            squares[name] += weight * _length(offset[span]) ** 2
    lengths = {name: math.sqrt(square) for name, square in squares.items()}
    if not relative:
        return lengths
    return {name: _ratio(length, _length(centre[spans[name]])) for name, length in lengths.items()}


def cosines(recorded: Recorded) -> list[float]:
    """cos(Δ_i, Δ) of every client in the order of the cohort, Δ_i = w_i − φ and Δ = Σ ω_i Δ_i.

    NaN for a client that did not move, and for all if Δ is zero; none where nobody answered.
    """
    if not recorded.clients:
        return []
    phi = recorded.phi.double()
    delta = mean(recorded).sub_(phi)
    length = _length(delta)
    found = []
    for _, w in _locals(recorded):
        update = w - phi
        found.append(_ratio(float(update @ delta), _length(update) * length))
    return found


def _locals(recorded: Recorded) -> Iterator[tuple[float, Tensor]]:
    """ω_i and w_i, one client at a time."""
    for place, weight in enumerate(recorded.weights):
        yield weight, recorded.local(place)[0]


def _length(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def squared_deviations(history: History, decay: float = DECAY) -> list[float]:
    """(Acc − ema)² at each evaluated round, in percentage points squared."""
    averages = history.moving_average(decay)
    return [(100 * (accuracy - ema)) ** 2 for accuracy, ema in zip(history.accuracy, averages, strict=True)]


def stability(history: History, decay: float = DECAY) -> float | None:
    """The mean of (Acc − ema)² over the evaluated rounds, None without any. Small is steady."""
    squares = squared_deviations(history, decay)
    return statistics.fmean(squares) if squares else None


_FIGURES = (
    "divergence_relative",
    "divergence",
    "distance",
    "distance_relative",
    "delta_norm",
    "momentum_norm",
)


def divergence_of(subjects: Sequence[Subject]) -> Finding:
    """How far the local models of a cohort lie from their mean, round by round."""
    whole = [_line(group, lambda drift: drift.get("divergence_relative")) for group in by_group(subjects)]
    names = _part_names(subjects)
    parts = {name: [_part_line(group, name) for group in by_group(subjects)] for name in names}
    rows = [
        [subject.ink.label, subject.run.seed, metrics.round, *(drift.get(key) for key in _FIGURES)]
        + [_stages(drift).get(name) for name in names]
        for subject, metrics, drift in _drifts(subjects)
    ]
    heads = ["method", "seed", "round", *_FIGURES, *(name.replace(" ", "_") for name in names)]
    figure = pictures.divergence(
        whole, {name: [line for line in lines if len(line.xs)] for name, lines in parts.items()}
    )
    return Finding(
        [Drawing("divergence", *DIVERGENCE, figure)],
        {"divergence.csv": to_csv(heads, rows)},
        [summary_column("divergence", subjects, [_mean(s, "divergence_relative") for s in subjects])],
    )


def stability_of(subjects: Sequence[Subject], window: float) -> Finding:
    """How far the test accuracy lies from its moving average over `window` rounds."""
    decay = 1 - 1 / window
    steady, rows = [], []
    for group in by_group(subjects):
        squares, means = [], []
        for subject in group:
            history = subject.history
            found = squared_deviations(history, decay)
            squares.append(dict(zip((m.round for m in history.evaluated), found, strict=True)))
            means += [statistics.fmean(found)] if found else []
            averages = history.moving_average(decay)
            for metrics, average, square in zip(history.evaluated, averages, found, strict=True):
                rows.append(
                    [subject.ink.label, subject.run.seed, metrics.round, metrics.test_accuracy, average, square]
                )
        if means:
            deviation = statistics.stdev(means) if len(means) > 1 else None
            line = over_seeds(group[0].ink, squares)
            steady.append(pictures.Steadiness(line, statistics.fmean(means), deviation))
    heads = ["method", "seed", "round", "accuracy", "moving_average", "squared_deviation_points"]
    title, caption, alt = STABILITY
    return Finding(
        [Drawing("stability", title, caption.format(window=f"{window:g}"), alt, pictures.stability(steady))],
        {"stability.csv": to_csv(heads, rows)},
        [summary_column("stability", subjects, [stability(s.history, decay) for s in subjects])],
    )


def drift_of(subjects: Sequence[Subject]) -> Finding:
    """Whether clients pull in one direction: cosines of their updates with the mean update."""
    means = [_line(group, lambda drift: drift.get("cosine")) for group in by_group(subjects)]
    rows: list[list[object]] = [
        [subject.ink.label, subject.run.seed, metrics.round, None, drift.get("cosine")]
        for subject, metrics, drift in _drifts(subjects)
    ]
    strips = []
    for group in by_group(subjects):
        cosines: dict[int, list[float]] = {}
        for subject in group:
            for round in subject.recorded:
                recorded = subject.load(round)
                found = rounds.cosines(recorded)
                cosines.setdefault(round, []).extend(cosine for cosine in found if math.isfinite(cosine))
                for client, cosine in zip(recorded.clients, found, strict=True):
                    rows.append([subject.ink.label, subject.run.seed, round, client, cosine])
        strips += [
            pictures.Strip(group[0].ink, round, np.array(found)) for round, found in cosines.items() if found
        ]
    return Finding(
        [Drawing("drift", *DRIFT, pictures.drift(means, strips))],
        {"drift.csv": to_csv(["method", "seed", "round", "client", "cosine"], rows)},
        [summary_column("cosine", subjects, [_mean(s, "cosine") for s in subjects])],
    )


Drift = Mapping[str, Any]


def _drifts(subjects: Sequence[Subject]) -> list[tuple[Subject, RoundMetrics, Drift]]:
    """The rounds in which somebody answered, with their figures."""
    return [(s, metrics, metrics.drift) for s in subjects for metrics in s.history if metrics.drift is not None]


def _line(group: Sequence[Subject], figure: Callable[[Drift], float | None]) -> Line:
    """A figure of a group along the rounds that have it."""
    seeds: list[dict[int, float]] = []
    for subject in group:
        found = ((metrics.round, figure(drift)) for _, metrics, drift in _drifts([subject]))
        seeds.append({round: value for round, value in found if value is not None and math.isfinite(value)})
    return over_seeds(group[0].ink, seeds)


def _part_line(group: Sequence[Subject], name: str) -> Line:
    return _line(group, lambda drift: _stages(drift).get(name))


def _stages(drift: Drift) -> dict[str, float | None]:
    """The divergence of every part by its name; null in the file is None here."""
    values = drift.get("stages") or []
    return dict(zip([*(f"stage {number}" for number in range(len(values) - 1)), "head"], values, strict=False))


def _part_names(subjects: Sequence[Subject]) -> list[str]:
    """Of all runs together: the stages of the deepest network, then the head."""
    names = dict.fromkeys(name for _, _, drift in _drifts(subjects) for name in _stages(drift))
    return sorted(names, key=lambda name: (name == "head", len(name), name))


def _mean(subject: Subject, figure: str) -> float | None:
    line = _line([subject], lambda drift: drift.get(figure))
    return float(line.ys.mean()) if len(line.ys) else None


DIVERGENCE = Words(
    title="Weight divergence",
    caption=(
        "How far the local models of a round lie from their mean, relative to the length of that mean; below, the "
        "plain distance for every stage of the network and its head. Faint lines are single rounds, bold ones "
        "the mean over the rounds around them. A low line means that the clients stay close together, so "
        "averaging loses little of what they have learnt."
    ),
    alt=("Weight divergence along the rounds, a line for each method, for the whole model and for its parts."),
)
STABILITY = Words(
    title="Stability",
    caption=(
        "The squared distance of the test accuracy from its own moving average over some {window} rounds, in "
        "percentage points squared: along the rounds, on a scale by powers of ten, and as bars the mean over all "
        "of them. Low is steady: the model of one round is about as good as that of the next."
    ),
    alt=(
        "Squared distance of the accuracy from its moving average along the rounds, and a bar with the mean for "
        "each method."
    ),
)
DRIFT = Words(
    title="Drift of the clients",
    caption=(
        "The cosine between the update that a client sends and the mean update of its cohort. 1 means that it "
        "pulls where the cohort goes, 0 that it pulls sideways, below 0 that it pulls back. One panel has the "
        "mean of the cohort in every round; where rounds were recorded, the other has every client as a dot, and "
        "their mean as a bar. High is good: little of the updates cancels out."
    ),
    alt=(
        "Mean cosine between client updates and the mean update along the rounds, a line for each method, and dots"
        " for single clients."
    ),
)
