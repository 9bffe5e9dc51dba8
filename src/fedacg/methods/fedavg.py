"""FedAvg: clients take K SGD steps on their own loss, the server averages.

client   minimise ℓ_i(w) from w = φ = θ;  Δ_i = w_i − φ
server   θ ← θ + η_g Σ ω_i Δ_i
"""

from fedacg.methods.method import Method
from fedacg.methods.rules import Average


def fedavg(server_lr: float) -> Method:
    return Method(Average(server_lr))
