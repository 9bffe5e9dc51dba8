"""FedYogi: FedAdam whose second moment moves towards Δ² by a step that its own distance does not scale.

    server   m ← β₁m + (1−β₁)Δ;  v ← v − (1−β₂)Δ² sign(v − Δ²);  θ ← θ + η_g m/(√v + τ)

Δ = Σ ω_i Δ_i; v₀ = τ², no bias correction.
"""

import torch
from torch import Tensor

from fedacg.methods.method import Method
from fedacg.methods.rules import Adam


class Yogi(Adam):
    """v ← v − (1−β₂)Δ² sign(v − Δ²)"""

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        square = delta.square()
        return torch.addcmul(v, square, torch.sign(v - square), value=self.beta2 - 1)


def fedyogi(beta1: float, beta2: float, tau: float, server_lr: float) -> Method:
    return Method(Yogi(beta1, beta2, tau, server_lr))
