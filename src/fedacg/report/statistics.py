"""Comparisons over seeds and over settings: which differences are significant.

Two methods that were run with the same seeds had the same clients, weights, cohorts and batches, so their runs are
compared in pairs. Everything here is a pure function of its numbers; where resampling needs randomness, the stream
is fixed, and the same numbers always give the same interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedacg.core.randomness import numpy_generator

Floats = NDArray[np.float64]
Sample = Mapping[int, float]
"""A figure by seed."""

LEVEL = 0.05
"""Differences with a corrected p-value below this are significant."""
CONFIDENCE = 0.95
RESAMPLES = 10_000
"""Resamples of a bootstrap; if fewer are possible, all are taken."""


@dataclass(frozen=True)
class Difference:
    """The difference between two methods, over the seeds they share."""

    pairs: int
    mean: float
    low: float
    high: float
    """The ends of the bootstrap interval of the mean."""
    p: float
    """Two-sided, of the paired t-test."""
    improvement: float
    """The probability that a run of the one is better than a run of the other; ties count half."""

    @property
    def told(self) -> bool:
        """Whether it is significant."""
        return self.p < LEVEL


def difference(ours: Sample, theirs: Sample) -> Difference | None:
    """Ours minus theirs, paired by seed; None with fewer than two common seeds."""
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return None
    one, other = (np.array([sample[seed] for seed in seeds]) for sample in (ours, theirs))
    low, high = interval(one - other)
    return Difference(
        pairs=len(seeds),
        mean=float(np.mean(one - other)),
        low=low,
        high=high,
        p=paired_test(one - other),
        improvement=probability_of_improvement([one], [other]),
    )


def differences(samples: Sequence[Sample], reference: int) -> list[Difference | None]:
    """Every sample minus the one at `reference`, with p-values corrected by Holm for their number."""
    found = [
        None if place == reference else difference(sample, samples[reference])
        for place, sample in enumerate(samples)
    ]
    corrected = iter(holm([each.p for each in found if each is not None]))
    return [None if each is None else replace(each, p=next(corrected)) for each in found]


def paired_test(differences: ArrayLike) -> float:
    """The two-sided p-value of Student's test that paired differences have mean zero."""
    from scipy.special import stdtr  # only comparisons need it

    values = np.asarray(differences, dtype=float)
    error = values.std(ddof=1) / np.sqrt(len(values))
    if error == 0:  # always the same difference: certain, or none at all
        return 0.0 if values[0] else 1.0
    return float(2 * stdtr(len(values) - 1, -abs(values.mean() / error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number, step by step from the smallest (Holm, 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def interval(values: ArrayLike) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean; of few values every possible resample is taken."""
    array = np.asarray(values, dtype=float)
    count = len(array)
    if count**count <= RESAMPLES:
        drawn = np.array(list(product(range(count), repeat=count)))
    else:
        drawn = numpy_generator(0, "bootstrap").integers(count, size=(RESAMPLES, count))
    return _ends(array[drawn].mean(axis=1))


def _ends(statistics: Floats) -> tuple[float, float]:
    low, high = np.quantile(statistics, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


# Over many settings, after Agarwal et al., "Deep RL at the edge of the statistical precipice", NeurIPS 2021. A
# method's scores are then one list of runs for each setting.

Scores = Sequence[ArrayLike]


def probability_of_improvement(ours: Scores, theirs: Scores) -> float:
    """P(ours > theirs) + ½ P(ours = theirs) for a run of each, the mean over settings."""
    wins = []
    for one, other in zip(ours, theirs, strict=True):
        gaps = np.subtract.outer(np.asarray(one, dtype=float), np.asarray(other, dtype=float))
        wins.append(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
    return float(np.mean(wins))


def interquartile_mean(values: ArrayLike) -> float:
    """The mean of the middle half of some values: a quarter is left out at either end, rounded down."""
    ordered = np.sort(np.asarray(values, dtype=float), axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def interquartile_interval(scores: Scores) -> tuple[float, float]:
    """The bootstrap interval of the interquartile mean of all runs; seeds are resampled within each setting."""
    rng = numpy_generator(0, "stratified bootstrap")
    parts = [np.asarray(each, dtype=float) for each in scores]
    drawn = [part[rng.integers(len(part), size=(RESAMPLES // 5, len(part)))] for part in parts]
    return _ends(np.array([interquartile_mean(row) for row in np.concatenate(drawn, axis=1)]))


def performance_profile(scores: Scores, thresholds: ArrayLike) -> Floats:
    """The fraction of a method's runs above each threshold, averaged over settings."""
    steps = np.asarray(thresholds, dtype=float)
    parts = [(np.asarray(each, dtype=float)[:, None] > steps).mean(axis=0) for each in scores]
    return np.asarray(np.mean(parts, axis=0))
