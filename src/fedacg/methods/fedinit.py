"""FedInit: a client starts on the far side of the broadcast point, away from where it ended last; and `+ri`.

    client   starts at φ_i = φ + β(φ − w_i), w_i where it ended its last visit;  Δ_i is taken from φ_i;  keeps w_i
    server   θ ← θ + η_g Σ ω_i Δ_i

At its first visit a client starts at φ.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedacg.core.round import Message
from fedacg.errors import InputError
from fedacg.methods.fedavg import fedavg
from fedacg.methods.method import Method
from fedacg.methods.parts import Part
from fedacg.methods.visit import Assignment, Departure, keep_point


class RelaxedStart(Part):
    """φ_i = φ + β(φ − w_i)"""

    fuses = True

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def begin(self, assignment: Assignment) -> None:
        self._last = assignment.point("ended")

    def start(self, point: Tensor) -> Tensor:
        self._start = torch.add(point, point - self._last, alpha=self.beta)
        return self._start

    def end(self, delta: Tensor, departure: Departure) -> None:
        self._ended = self._start + delta

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return keep_point("ended", self._ended)


def add_relaxed_start(method: Method, beta: float) -> Method:
    if any(type(part).start is not Part.start for part in method.parts):
        raise InputError("it sets the starting point itself")
    if not method.step.corrected:
        raise InputError(
            "its steps are compared with those from another point, which the relaxed start would not move"
        )
    return replace(method, objective=(*method.objective, RelaxedStart(beta)))


def fedinit(beta: float, server_lr: float) -> Method:
    return add_relaxed_start(fedavg(server_lr), beta)
