"""What looks on in a round: how its local models spread, and the privacy it has spent.

The figures of the spread are summed up as updates arrive, in the memory of two vectors whatever the cohort; what
needs the local models themselves is in analysis/. The privacy spent follows from the completed rounds, so that a
resumed run continues counting where it stopped.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedacg.core.accounting import Gaussian, most_releases
from fedacg.core.round import Message
from fedacg.errors import SettingError
from fedacg.methods.dp import Promise
from fedacg.models.networks import StagedModel
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.replies import Arrivals


def stage_slices(module: nn.Module) -> dict[str, slice]:
    """The positions of a network's stages and head in its flat vector; empty for one without stages."""
    if not isinstance(module, StagedModel):
        return {}
    parts = {f"stage {number}": stage for number, stage in enumerate(module.stages)} | {"head": module.head}
    slices, first = {}, 0
    for name, part in parts.items():
        size = sum(p.numel() for p in part.parameters() if p.requires_grad)
        slices[name] = slice(first, first + size)
        first += size
    return slices


class Drift:
    """A probe of sums over a round's updates Δ_i with weights ω_i; Δ = Σ ω_i Δ_i."""

    def __init__(self, module: nn.Module) -> None:
        self._parts = list(stage_slices(module).values())

    def begin(self, round: int, broadcast: Message) -> None:
        self._phi = broadcast["phi"]
        self._mean, self._units = torch.zeros_like(self._phi), torch.zeros_like(self._phi)
        self._squares = [0.0] * len(self._parts)
        self._square = self._distance = 0.0
        self._clients = 0

    def see(self, arrivals: Arrivals) -> None:
        deltas, omega = arrivals.deltas, arrivals.deltas.new_tensor(arrivals.weights)
        norms = torch.linalg.vector_norm(deltas, dim=1)
        self._clients += len(deltas)
        self._distance += float(omega @ norms)
        self._square += _mean_square(norms, omega)
        for number, part in enumerate(self._parts):
            self._squares[number] += _mean_square(torch.linalg.vector_norm(deltas[:, part], dim=1), omega)
        self._mean.addmv_(deltas.T, omega)
        self._units.addmv_(deltas.T, (1 / norms).where(norms > 0, 0))

    def end(self) -> None:
        """The figures are ready."""

    def figures(self, m: Tensor | None) -> dict[str, Any]:
        """The figures of a round with answers for `metrics.jsonl`; m is the server's momentum after it.

        divergence   √(Σ ω_i ‖w_i − w̄‖²), w̄ = Σ ω_i w_i; relative to ‖w̄‖; and of every stage and the head
        distance     Σ ω_i ‖w_i − φ‖; relative to ‖φ‖
        cosine       the mean over clients of cos(Δ_i, Δ)
        """
        delta = _norm(self._mean)
        # Σ ω_i ‖w_i − w̄‖² = Σ ω_i ‖Δ_i‖² − ‖Δ‖², so the updates need not be kept.
        divergence = math.sqrt(max(0.0, self._square - delta**2))
        stages = [
            math.sqrt(max(0.0, square - _norm(self._mean[part]) ** 2))
            for square, part in zip(self._squares, self._parts, strict=True)
        ]
        figures: dict[str, Any] = {
            "divergence": divergence,
            "divergence_relative": _ratio(divergence, _norm(self._phi + self._mean)),
            "distance": self._distance,
            "distance_relative": _ratio(self._distance, _norm(self._phi)),
            "cosine": _ratio(float(self._units @ self._mean) / self._clients, delta),
            "delta_norm": delta,
        }
        if m is not None:
            figures["momentum_norm"] = _norm(m)
        if stages:
            figures["stages"] = stages
        return figures


def _mean_square(norms: Tensor, weights: Tensor) -> float:
    return float(weights.double() @ norms.double().square())


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


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
