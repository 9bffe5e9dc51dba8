"""FedNova (Wang et al., NeurIPS 2020): updates are normalised by how far their steps could go.

client   K_i steps of SGD;  ‖a_i‖₁ = K_i, with momentum ρ [K_i − ρ(1−ρ^{K_i})/(1−ρ)]/(1−ρ);  sends Δ_i and ‖a_i‖₁
server   θ ← θ + η_g τ Σ ω_i Δ_i/‖a_i‖₁,  τ = Σ ω_i ‖a_i‖₁

fedacg run quickstart --method fednova:fednova --set failures.straggle=0.5
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods import Entry, Method, positive
from fedacg.methods.parts import Empirical, Part
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import ServerRule, State, Totals
from fedacg.methods.visit import Assignment, Departure


class Reach(Part):
    """Sends ‖a_i‖₁ beside the update."""

    fuses = True

    def begin(self, assignment: Assignment) -> None:
        steps, rho = assignment.steps, assignment.local.momentum
        reach = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        self._reach = torch.as_tensor(reach, dtype=assignment.phi.dtype)

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.attach("reach", self._reach)


class Normalised(ServerRule):
    """θ ← θ + η_g τ Σ ω_i Δ_i/‖a_i‖₁"""

    def __init__(self, server_lr: float) -> None:
        self.server_lr = server_lr

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        reach = reply.extras["reach"]
        return {"direction": (reply.delta, reply.weight / float(reach)), "tau": (reach, reply.weight)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        tau = self.server_lr * float(totals["tau"])
        return {"theta": torch.add(state["theta"], totals["direction"], alpha=tau)}


def build(server_lr: float) -> Method:
    return Method(Normalised(server_lr), objective=(Empirical(), Reach()))


fednova = Entry(
    name="fednova",
    title="FedNova",
    reference="Wang et al., NeurIPS 2020",
    equation="θ ← θ + τ Σ ω_i Δ_i/‖a_i‖₁; τ = Σ ω_i ‖a_i‖₁",
    options={"server_lr": positive(1.0)},
    build=build,
)
