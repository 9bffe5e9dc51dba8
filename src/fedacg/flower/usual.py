"""Usual values in a federation: a bound on norms and counts that no single node can move.

A number that a node sends is compared with medians: of this round, and of what was accepted in each of the last
rounds with three or more replies. The largest of them is the usual value: so a minority of nodes decides nothing,
and a round in which most clients had nothing left to learn does not make the next update too long. Where three
have never replied, nobody could say which of two is wrong, and only what the server knows itself counts.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median_high
from typing import TypeVar

_ROUNDS = 10
"""Number of past rounds that are remembered."""
_ENOUGH = 3
"""Least number of values whose median no single node decides."""
_UNKNOWN = 1 / 4
"""Of the size that the server knows, what is usual as long as there is nothing to compare with."""
_LEAST = 1 / 20
"""Of that size, the least that is usual, however small the others are."""

Key = TypeVar("Key", bound=Hashable)
Remembered = tuple[int, float, float]
"""A round, and the medians of what was accepted in it: the size, and the steps it took."""


@dataclass(frozen=True)
class Measured:
    """The size of something that a node sent."""

    size: float
    steps: float = 1.0
    """The local steps it took, which the server knows; more of them may make it larger."""
    either_way: bool = False
    """Whether fewer steps may make it larger too, as of a vector that is divided by them."""


class MedianBound:
    """Accepts at most `factor` times the usual value; a factor of 0 accepts everything."""

    def __init__(self, factor: float, option: str, history: dict[str, list[Remembered]] | None = None) -> None:
        self.factor, self._option = factor, option
        self.history = {} if history is None else history

    def judge(
        self, round: int, sent: Mapping[Key, Mapping[str, Measured]], known: Mapping[str, float] | None = None
    ) -> dict[Key, str]:
        """The nodes whose values in a round are too large, and why; the others are remembered.

        Args:
            sent: By node, what is measured and how large it is.
            known: Of what is measured, a size that the server knows: for an update, that of the model.
        """
        if not self.factor:
            return {}
        refused: dict[Key, str] = {}
        names = dict.fromkeys(name for its in sent.values() for name in its)
        for name in names:
            # A server that went back to a checkpoint forgets what came after it.
            self.history[name] = [entry for entry in self.history.get(name, []) if entry[0] < round][-_ROUNDS:]
            size, steps = self._usual(name, [its[name] for its in sent.values()], (known or {}).get(name, 0.0))
            for node, its in sent.items():
                if size and its[name].size > self.factor * size * _slack(its[name], steps):
                    refused.setdefault(
                        node,
                        f"{name} is {its[name].size:g}, more than {self.factor:g} times the usual {size:.3g}; "
                        f"{self._option} sets the limit",
                    )
        for name in names:
            accepted = [its[name] for node, its in sent.items() if node not in refused]
            if len(sent) >= _ENOUGH and accepted:
                self.history[name].append((round, *_median(accepted)))
        return refused

    def _usual(self, name: str, now: list[Measured], known: float) -> tuple[float, float]:
        """The usual size, 0 where nothing is known of it, and the steps that go with it."""
        medians = [(size, steps) for _, size, steps in self.history[name]]
        if len(now) >= _ENOUGH:
            medians.append(_median(now))
        if not medians:
            return _UNKNOWN * known, median_high(one.steps for one in now)
        size, steps = max(medians)
        return max(size, _LEAST * known), steps


def _median(found: list[Measured]) -> tuple[float, float]:
    return median_high(one.size for one in found), median_high(one.steps for one in found)


def _slack(one: Measured, steps: float) -> float:
    """How much larger than usual something may be for its steps, which follow from what its node announced.

    The square root: a walk of K steps gets √K to K steps far, and for the rest there is the factor.
    """
    ratio = math.sqrt(one.steps / steps)
    return max(1.0, ratio, 1 / ratio if one.either_way else 0.0)


def middle(values: Iterable[float]) -> float | None:
    """What most of these are near to; None where there are too few to say."""
    listed = list(values)
    return median_high(listed) if len(listed) >= _ENOUGH else None
