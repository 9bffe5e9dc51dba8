"""How a round's local models spread: cheap figures, recorded in every round.

They are summed up as the updates arrive, in the memory of two vectors whatever the cohort. Analyses that need the
local models themselves are in analysis/.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from fedacg.core.round import Message
from fedacg.models.networks import StagedModel
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
