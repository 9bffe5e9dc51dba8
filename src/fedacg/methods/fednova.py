"""FedNova: updates are normalised by how far a client's steps could go, so that more steps weigh no more.

    client   K_i steps of SGD with the pull μ/2 ‖w − φ‖²;  sends Δ_i and ‖a_i‖₁, a_i the factors of its gradients:
             plain K_i;  momentum ρ  [K_i − ρ(1−ρ^{K_i})/(1−ρ)]/(1−ρ);  the pull  (1 − (1−ημ)^{K_i})/(ημ)
    server   θ ← θ + η_g τ Σ ω_i Δ_i/‖a_i‖₁,  τ = Σ ω_i ‖a_i‖₁, or Σ ω_i K_i with the pull

When everybody takes as many plain steps it is FedAvg. It knows SGD at a rate that is constant within a round.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.errors import InputError
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Part, Proximal
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Around, Average, ServerRule, State, Totals
from fedacg.methods.visit import Assignment, Departure


class Reach(Part):
    """Sends ‖a_i‖₁ beside the update."""

    fuses = True

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def begin(self, assignment: Assignment) -> None:
        local, steps = assignment.local, torch.as_tensor(assignment.steps)
        if local.optimiser != "sgd" or local.nesterov or local.within != "constant" or local.epoch_decay:
            raise InputError(
                "method fednova: its normalisation is that of SGD, plain or with heavy-ball momentum, at a rate "
                "that is constant within a round; set local.optimiser, nesterov, within and epoch_decay so"
            )
        table = reaches(int(steps.max()), local.momentum, assignment.round.lr * self.mu)
        self._reach = torch.tensor(table, dtype=assignment.phi.dtype)[steps.long().cpu()]

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.attach("reach", self._reach)


def reaches(steps: int, momentum: float, pull: float) -> list[float]:
    """‖a‖₁ after 0, 1, … steps: how many η the sum of its steps is long, against gradients of length one."""
    velocity, length, found = 0.0, 0.0, [0.0]
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * length
        length += velocity
        found.append(length)
    return found


class Normalised(Around):
    """Σ ω_i Δ_i becomes τ Σ ω_i Δ_i/‖a_i‖₁; θ moves by it as the inner rule has it."""

    def __init__(self, mu: float, inner: ServerRule) -> None:
        super().__init__(inner)
        self.mu = mu

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        reach = reply.extras["reach"]
        tau = torch.full_like(reach, reply.steps) if self.mu else reach
        return {"delta": (reply.delta, reply.weight / float(reach)), "tau": (tau, reply.weight)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return super().step(state, totals.changed(delta=totals["delta"] * totals["tau"]), round)


def fednova(mu: float, server_lr: float) -> Method:
    objective = (Empirical(), Reach(mu), Proximal(mu))
    return Method(Normalised(mu, Average(server_lr)), objective)
