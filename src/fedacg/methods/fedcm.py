"""FedCM: every local step is mixed with the direction of the server's last step.

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
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Around, Average, State, Totals
from fedacg.methods.visit import Assignment


class ClientMomentum(Correction):
    """g ← αg + (1−α)D"""

    fuses = True

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def begin(self, assignment: Assignment) -> None:
        self._direction = assignment.broadcast["direction"]

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.lerp_(self._direction, 1 - self.alpha)


class DirectionServer(Around):
    """D ← −Σ ω_i Δ_i/(K_i η);  θ moves as the inner rule has it"""

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "direction": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {**super().broadcast(state, round), "direction": state["direction"]}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {**super().collect(reply), "direction": (reply.delta, -reply.weight / reply.total_lr)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return {**super().step(state, totals, round), "direction": totals["direction"]}


def fedcm(alpha: float, server_lr: float) -> Method:
    return Method(DirectionServer(Average(server_lr)), objective=(Empirical(), ClientMomentum(alpha)))
