"""FedSAM (Qu et al., ICML 2022): every local step looks for the steepest ascent nearby first; and `sam` as a part.

client   ε = ρ g(w; B)/‖g(w; B)‖₂;  w ← w − η g(w + ε; B), on the same batch B
server   θ ← θ + η_g Σ ω_i Δ_i

fedacg run quickstart --method fedsam:fedsam
fedacg run quickstart --method fedacg+fedsam:sam
"""

from dataclasses import replace

import torch
from torch import Tensor

from fedacg.errors import InputError
from fedacg.methods import Entry, Method, Modifier, positive, rate
from fedacg.methods.parts import Gradient, LocalStep
from fedacg.methods.rules import Average


class Ascent(LocalStep):
    """g(w + ρ g/‖g‖), of one vector or of every row"""

    def __init__(self, rho: float) -> None:
        self.rho = rho

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        g = gradient()
        norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True) + 1e-16
        return gradient(w + self.rho * g / norm)


def build(rho: float, server_lr: float) -> Method:
    return Method(Average(server_lr), step=Ascent(rho))


def add(method: Method, rho: float) -> Method:
    if type(method.step) is not LocalStep:
        raise InputError("it has a local step already, and a method has only one")
    return replace(method, step=Ascent(rho))


fedsam = Entry(
    name="fedsam",
    title="FedSAM",
    reference="Qu et al., ICML 2022",
    equation="w ← w − η g(w + ρ g/‖g‖; B); θ ← θ + Δ",
    options={"rho": rate(0.1), "server_lr": positive(1.0)},
    build=build,
)
sam = Modifier(
    name="sam",
    title="sharpness-aware local steps",
    equation="w ← w − η g(w + ρ g/‖g‖; B)",
    options={"rho": rate(0.1)},
    apply=add,
)
