"""FedAvgM: FedAvg with momentum at the server.

client   minimise ℓ_i(w) from w = φ = θ
server   m ← βm + η_g Σ ω_i Δ_i;  θ ← θ + m
"""

from fedacg.methods.method import Method
from fedacg.methods.rules import Momentum


def fedavgm(beta: float, server_lr: float) -> Method:
    return Method(Momentum(beta, server_lr))
