"""FedCM: every local step is mixed with the direction the server moved in last.

    server   broadcast φ = θ and D
    client   w ← w − η(αg + (1−α)D)
    server   D ← −Σ ω_i Δ_i/(K_i η);  θ ← θ + η_g Σ ω_i Δ_i

K_i η is the sum of the rates of the steps that made Δ_i. D starts at zero.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.parts import Correction, Empirical
from fedacg.methods.rules import Reply, ServerRule, State, Term, Totals
from fedacg.methods.visit import Assignment


class ClientMomentum(Correction):
    """g ← αg + (1−α)D"""

    fuses = True

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def begin(self, assignment: Assignment) -> None:
        self._direction = assignment.broadcast["direction"]

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.mul_(self.alpha).add_(self._direction, alpha=1 - self.alpha)


class DirectionServer(ServerRule):
    """D ← −Σ ω_i Δ_i/(K_i η);  θ ← θ + η_g Σ ω_i Δ_i"""

    def __init__(self, server_lr: float) -> None:
        self.server_lr = server_lr

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "direction": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {"phi": state["theta"], "direction": state["direction"]}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {
            "delta": (reply.delta, reply.weight),
            "direction": (reply.delta, -reply.weight / reply.total_lr),
        }

    def step(self, state: State, totals: Totals, round: Round) -> State:
        theta = torch.add(state["theta"], totals["delta"], alpha=self.server_lr)
        return {"theta": theta, "direction": totals["direction"]}


def fedcm(alpha: float, server_lr: float) -> Method:
    return Method(DirectionServer(server_lr), objective=(Empirical(), ClientMomentum(alpha)))
