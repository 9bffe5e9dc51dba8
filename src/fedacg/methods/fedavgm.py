"""FedAvgM: FedAvg with momentum at the server.

client   minimise ℓ_i(w) from w = φ = θ
server   m ← βm + η_g Σ ω_i Δ_i;  θ ← θ + m
"""

from fedacg.methods.method import Entry, Method, fraction, positive
from fedacg.methods.rules import Momentum


def fedavgm(beta: float, server_lr: float) -> Method:
    return Method(Momentum(beta, server_lr))


FEDAVGM = Entry(
    name="fedavgm",
    title="FedAvgM",
    reference="Hsu, Qi, Brown, 2019",
    equation="m ← βm + Δ; θ ← θ + m",
    options={"beta": fraction(0.4), "server_lr": positive(1.0)},
    build=fedavgm,
)
