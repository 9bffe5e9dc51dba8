"""FedAdam: the mean update is the gradient of an Adam step at the server.

client   minimise ℓ_i(w) from w = φ = θ
server   m ← β₁m + (1−β₁)Δ;  v ← β₂v + (1−β₂)Δ²;  θ ← θ + η_g m/(√v + τ)
         v₀ = τ², and no bias correction, as in the paper
"""

from fedacg.methods.method import Method
from fedacg.methods.rules import Adam


def fedadam(beta1: float, beta2: float, tau: float, server_lr: float) -> Method:
    return Method(Adam(beta1, beta2, tau, server_lr))
