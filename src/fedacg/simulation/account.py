"""The privacy a federation has spent, round by round, and when it must stop.

Everything follows from the completed rounds, so that a resumed run continues counting where it stopped.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedacg.core.accounting import Gaussian, most_releases
from fedacg.errors import SettingError
from fedacg.methods.dp import Promise
from fedacg.simulation.metrics import RoundMetrics


class Account:
    """The cost of a promise to clients that take part by coins of probability `rate`; 1 without coins."""

    def __init__(self, promise: Promise, *, rate: float, clients: int, expected: int, rounds: int) -> None:
        self.promise, self.rate = promise, rate if promise.amplified else 1.0
        self._coins = rate < 1
        self._clients, self._expected = clients, expected
        self._mechanism = promise.mechanism(self.rate)
        self._visits: Counter[int] = Counter()
        self._counted = 0
        self._mechanism.epsilon(1, promise.delta)  # without dp-accounting it fails here
        self._most: int | None = None
        if promise.budget:
            self._most = most_releases(self._mechanism, promise.budget, promise.delta, most=rounds)
            if not self._most:
                first = f"the first round costs ε = {self._mechanism.epsilon(1, promise.delta):.3g}"
                raise SettingError("method.budget", f"{promise.budget:g}", f"{first} alone; more noise costs less")

    def scores(self, history: Sequence[RoundMetrics], asked: Sequence[int] | None = None) -> dict[str, float]:
        """The figures after these rounds, and one more where its clients are given, for `RoundMetrics.scores`."""
        releases, delta = self._releases(history, asked), self.promise.delta
        found = {"privacy/epsilon": self._mechanism.epsilon(releases, delta)}
        if isinstance(self._mechanism, Gaussian):
            found["privacy/epsilon_rdp"] = self._mechanism.epsilon_rdp(releases, delta)
        if self.promise.simulated:
            found["privacy/simulated_cohort"] = self.promise.simulated
        return found

    def stop(self, history: Sequence[RoundMetrics], asked: Sequence[int] | None = None) -> str:
        """Why another round would cost too much after these; empty if it would not."""
        releases = self._releases(history, asked)
        if self._most is None or releases < self._most:
            return ""
        spent = self._mechanism.epsilon(releases, self.promise.delta)
        return f"privacy budget: ε = {spent:.4g}, and another round could cost more than {self.promise.budget:g}"

    def summary(self, history: Sequence[RoundMetrics]) -> dict[str, Any]:
        """What was promised, for the summary of a run."""
        return {
            **{
                name.removeprefix("privacy/"): value if math.isfinite(value) else None
                for name, value in self.scores(history).items()
            },
            "delta": self.promise.delta,
            "kind": self.promise.kind,
            "statement": self.statement(history),
        }

    def statement(self, history: Sequence[RoundMetrics]) -> str:
        """What was promised and what not, in a sentence or two."""
        promise, spent = self.promise, self.scores(history)["privacy/epsilon"]
        cost = f"ε = {spent:.4g} at δ = {promise.delta:g} after {len(history)} rounds"
        if promise.kind == "local":
            most = self._releases(history, None)
            return f"privacy at the client: {cost}, for the client with the most visits, {most}"
        if promise.kind == "banded":
            why = f"correlated noise, and clients rest {len(promise.bands) - 1} rounds between visits"
        elif self._coins:
            why = f"amplified by coins of probability {self.rate:g}"
        else:
            why = "no amplification is claimed, as cohorts are not drawn by coins"
        text = f"privacy of clients: {cost}; {why}"
        if promise.simulated:
            population = round(self._clients * promise.simulated / self._expected)
            cohort = f"a cohort of {promise.simulated:g} out of {population} clients"
            text += f". SIMULATED: the noise is that of {cohort}; to these {self._clients} nothing is promised"
        return text

    def _releases(self, history: Sequence[RoundMetrics], asked: Sequence[int] | None) -> int:
        """How often something was released: once per round, or as often as the busiest client was asked."""
        if self.promise.kind != "local":
            return len(history) + (asked is not None)
        for metrics in history[self._counted :]:
            self._visits.update(metrics.cohort)
        self._counted = len(history)
        now = max((self._visits[client] + 1 for client in asked or ()), default=0)
        return max(now, max(self._visits.values(), default=0))
