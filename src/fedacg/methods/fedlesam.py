"""FedLESAM: sharpness-aware steps that ascend along the global model's last move, at the cost of one gradient.

    client   ε = ρ (φ_old − φ)/(‖φ_old − φ‖₂ + 10⁻¹⁶), φ_old what it was sent at its last visit
             w ← w − η g(w + ε; B);  keeps φ
    server   θ ← θ + η_g Σ ω_i Δ_i

The way back is uphill: φ_old − φ stands for the global gradient. At a client's first visit ε = 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedacg.core.round import Message
from fedacg.methods.method import Method
from fedacg.methods.parts import Gradient, LocalStep
from fedacg.methods.rules import Average
from fedacg.methods.visit import Assignment, keep_point


class GlobalAscent(LocalStep):
    """g(w + ε), ε the same for all steps of a visit"""

    def __init__(self, rho: float) -> None:
        self.rho = rho

    def begin(self, assignment: Assignment) -> None:
        back = assignment.point("sent") - assignment.phi
        length = torch.linalg.vector_norm(back, dim=-1, keepdim=True).add_(1e-16)
        self._ascent = back.mul(self.rho).div_(length)
        self._phi, self._scratch = assignment.phi.expand(back.shape), assignment.scratch

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        rows = slice(len(w))
        return gradient.last(torch.add(w, self._ascent[rows], out=self._scratch[rows]))

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return keep_point("sent", self._phi)


def fedlesam(rho: float, server_lr: float) -> Method:
    return Method(Average(server_lr), step=GlobalAscent(rho))
