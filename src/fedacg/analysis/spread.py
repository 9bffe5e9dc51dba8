"""How the local models of a recorded round spread: their distance from their mean, and where their updates point.

Two passes over the cohort, which is read model by model, in float64 and the memory of a few vectors. What is cheap
enough to be taken in every round, and where the stages lie in a vector, lives in `drift`.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedacg.errors import InputError
from fedacg.runs.recording import Recorded

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

    What is relative to nothing, of a part without parameters for one, is NaN.
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
