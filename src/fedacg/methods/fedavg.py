"""FedAvg: clients take K SGD steps on their own loss, the server averages.

client   minimise ℓ_i(w) from w = φ = θ;  Δ_i = w_i − φ
server   θ ← θ + η_g Σ ω_i Δ_i
"""

from fedacg.methods.method import Entry, Method, positive
from fedacg.methods.rules import Average


def fedavg(server_lr: float) -> Method:
    return Method(Average(server_lr))


FEDAVG = Entry(
    name="fedavg",
    title="FedAvg",
    reference="McMahan et al., AISTATS 2017",
    equation="θ ← θ + Δ",
    options={"server_lr": positive(1.0)},
    build=fedavg,
)
