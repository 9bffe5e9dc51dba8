"""Learning-rate schedules: the rate of every local step, over the rounds and within a round.

    over rounds      exponential η₀·d^(t−1) · cosine · step at milestones · constant · a function of your own,
                     after a linear warm-up if there is one
    within a round   constant · linear or cosine down to zero · a function of your own

Your own function is given as `package:function`. Over rounds it is called with (round, rounds), counted from 1;
within a round with (step, steps), counted from 0; it returns the factor on the rate.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby

from fedacg.config.sections import LocalSettings
from fedacg.core.plugins import load_function
from fedacg.errors import InputError

Factor = Callable[[int, int], float]


def rate_of_round(settings: LocalSettings, round: int, rounds: int) -> float:
    """η_t, the rate that round t starts with."""
    rate = settings.lr * _over_rounds(settings, round, rounds)
    return rate * min(1.0, round / (settings.warmup + 1)) if settings.warmup else rate


def rates_of_steps(settings: LocalSettings, lr: float, steps: int, epoch: int) -> tuple[float, ...]:
    """The rate of each of a client's K steps in a round that starts with η; `epoch` is the steps of one epoch."""
    rates = (lr,) * steps
    if settings.epoch_decay:
        rates = tuple(lr * settings.lr_decay ** (step // epoch) for step in range(steps))
    if settings.within == "constant":
        return rates
    factor = _WITHIN.get(settings.within) or _own("local.within", settings.within)
    return tuple(rate * _checked("local.within", factor, step, steps) for step, rate in enumerate(rates))


@lru_cache
def total_rate(rates: tuple[float, ...]) -> float:
    """The sum of the rates of some steps: K·η exactly where the rate is constant."""
    return sum(rate * len(list(same)) for rate, same in groupby(rates))


def _over_rounds(settings: LocalSettings, round: int, rounds: int) -> float:
    match settings.schedule:
        case "constant":
            return 1.0
        case "exponential":
            return settings.lr_decay ** (round - 1)
        case "cosine":
            return _cosine(round - 1, rounds)
        case "step":
            return settings.lr_decay ** sum(round > milestone for milestone in settings.milestones)
        case name:
            return _checked("local.schedule", _own("local.schedule", name), round, rounds)


def _linear(step: int, steps: int) -> float:
    return 1 - step / steps


def _cosine(step: int, steps: int) -> float:
    return (1 + math.cos(math.pi * step / steps)) / 2


_WITHIN: dict[str, Factor] = {"linear": _linear, "cosine": _cosine}


def _own(key: str, name: str) -> Factor:
    factor: Factor = load_function(key, name)
    return factor


def _checked(key: str, factor: Factor, place: int, last: int) -> float:
    value = factor(place, last)
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InputError(f"{key}: for ({place}, {last}) it gives {value!r}; must be a finite number of at least 0")
    return float(value)
