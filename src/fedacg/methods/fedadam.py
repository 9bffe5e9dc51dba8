"""FedAdam: the mean update is the gradient of an Adam step at the server.

client   minimise ℓ_i(w) from w = φ = θ
server   m ← β₁m + (1−β₁)Δ;  v ← β₂v + (1−β₂)Δ²;  θ ← θ + η_g m/(√v + τ)
         v₀ = τ², and no bias correction, as in the paper
"""

from fedacg.methods.method import Entry, Method, fraction, positive
from fedacg.methods.rules import Adam


def fedadam(beta1: float, beta2: float, tau: float, server_lr: float) -> Method:
    return Method(Adam(beta1, beta2, tau, server_lr))


FEDADAM = Entry(
    name="fedadam",
    title="FedAdam",
    reference="Reddi et al., ICLR 2021",
    equation="m, v ← moments of Δ; θ ← θ + η_g m/(√v + τ)",
    options={
        "beta1": fraction(0.9),
        "beta2": fraction(0.99),
        "tau": positive(0.001),
        "server_lr": positive(0.01),
    },
    build=fedadam,
)
