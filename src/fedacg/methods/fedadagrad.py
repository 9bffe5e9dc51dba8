"""FedAdagrad: FedAdam whose second moment is the sum of all squares so far.

    server   m ← β₁m + (1−β₁)Δ;  v ← v + Δ²;  θ ← θ + η_g m/(√v + τ)

Δ = Σ ω_i Δ_i; v₀ = τ².
"""

from torch import Tensor

from fedacg.methods.method import Method
from fedacg.methods.rules import Adam


class Adagrad(Adam):
    """v ← v + Δ²"""

    def __init__(self, beta1: float, tau: float, server_lr: float) -> None:
        super().__init__(beta1, 1.0, tau, server_lr)

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        return v + delta.square()


def fedadagrad(beta1: float, tau: float, server_lr: float) -> Method:
    return Method(Adagrad(beta1, tau, server_lr))
