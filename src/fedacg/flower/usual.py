"""What is usual in a federation: a bound on norms and counts that no single node can move.

A number that a node sends is compared with the median of those that were accepted in the last rounds, and of
those of this round where three or more came, so that a minority of nodes decides nothing. Where there is neither,
as in a first round with two replies, the caller may say what is to be expected.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median_high
from typing import TypeVar

_ROUNDS = 5
"""So many rounds back is what is usual remembered."""
_ENOUGH = 3
"""Among so many, the median is not one node's."""

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
    """At most `factor` times what is usual is taken; a factor of 0 takes everything."""

    def __init__(self, factor: float, option: str, history: dict[str, list[Remembered]] | None = None) -> None:
        self.factor, self._option = factor, option
        self.history = {} if history is None else history

    def judge(
        self, round: int, sent: Mapping[Key, Mapping[str, Measured]], expected: Mapping[str, float] | None = None
    ) -> dict[Key, str]:
        """Whose numbers of a round are too large, and why; the rest is remembered.

        Args:
            sent: By node, what is measured and how large it is.
            expected: What to go by as long as nothing is known of earlier rounds.
        """
        if not self.factor:
            return {}
        refused: dict[Key, str] = {}
        names = dict.fromkeys(name for its in sent.values() for name in its)
        for name in names:
            found = {node: its[name] for node, its in sent.items() if name in its}
            size, steps = self._usual(round, name, list(found.values()), (expected or {}).get(name, 0.0))
            if size == 0:
                continue
            for node, one in found.items():
                if one.size > self.factor * size * _slack(one, steps):
                    refused.setdefault(
                        node,
                        f"{name} is {one.size:g}, more than {self.factor:g} times the usual {size:.3g}; "
                        f"{self._option} sets what is taken",
                    )
        for name in names:
            self._remember(round, name, [its[name] for node, its in sent.items() if node not in refused])
        return refused

    def _usual(self, round: int, name: str, now: list[Measured], expected: float) -> tuple[float, float]:
        """The usual size, 0 where nothing is known of it, and the steps that go with it."""
        past = [entry for entry in self.history.get(name, []) if entry[0] < round][-_ROUNDS:]
        self.history[name] = past  # a server that went back to a checkpoint forgets what came after it
        size, steps = expected, median_high(one.steps for one in now)
        if past:
            size, steps = median_high(entry[1] for entry in past), median_high(entry[2] for entry in past)
        if len(now) >= _ENOUGH and (middle := median_high(one.size for one in now)) > size:
            size, steps = middle, median_high(one.steps for one in now)
        return size, steps

    def _remember(self, round: int, name: str, accepted: list[Measured]) -> None:
        if accepted:
            sizes, steps = (one.size for one in accepted), (one.steps for one in accepted)
            self.history[name].append((round, median_high(sizes), median_high(steps)))


def _slack(one: Measured, steps: float) -> float:
    """How much larger than usual something may be for the steps it took, which follow from what its node announced.

    The square root: a walk of K steps gets √K to K steps far, and for the rest there is the factor.
    """
    ratio = math.sqrt(one.steps / steps)
    return max(1.0, ratio, 1 / ratio if one.either_way else 0.0)


def middle(values: Iterable[float]) -> float | None:
    """What most of these are near to; None where there are too few to say."""
    listed = list(values)
    return median_high(listed) if len(listed) >= _ENOUGH else None
