"""How steadily a run learns: how far its test accuracy lies from its own moving average.

Worked out from the rounds of a run; the moving average itself lives in `metrics`.
"""

import statistics

from fedacg.runs.history import DECAY, History


def squared_deviations(history: History, decay: float = DECAY) -> list[float]:
    """(Acc − ema)² at each evaluated round, in percentage points squared."""
    averages = history.moving_average(decay)
    return [(100 * (accuracy - ema)) ** 2 for accuracy, ema in zip(history.accuracy, averages, strict=True)]


def stability(history: History, decay: float = DECAY) -> float | None:
    """The mean of (Acc − ema)² over the evaluated rounds, None without any. Small is steady."""
    squares = squared_deviations(history, decay)
    return statistics.fmean(squares) if squares else None
