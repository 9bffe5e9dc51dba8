"""FedProx: FedAvg with a pull towards the broadcast point; and `+prox`, the same pull for any method.

client   minimise ℓ_i(w) + μ/2 ‖w − φ‖²
server   θ ← θ + η_g Σ ω_i Δ_i
"""

from dataclasses import replace

from fedacg.errors import InputError
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Proximal
from fedacg.methods.rules import Average


def fedprox(mu: float, server_lr: float) -> Method:
    return Method(Average(server_lr), objective=(Empirical(), Proximal(mu)))


def add_proximal(method: Method, mu: float) -> Method:
    if any(part.pulls for part in method.corrections):
        raise InputError("it pulls towards φ already; set the strength of that pull instead")
    if not method.step.corrected:
        raise InputError(
            "its steps are compared with those from another point, and a pull would act on only one of them"
        )
    return replace(method, objective=(*method.objective, Proximal(mu)))
