"""FedADC: server momentum, part of which clients apply in their own steps.

    client   w ← w − η(g(w) + β_l m/K_i)
    server   m ← −Σ ω_i Δ_i/η + (β_g − β_l)m;  θ ← θ − α η m;  m starts at zero

A client's K_i steps carry β_l m in all, so m ← β_g m + the sum of the gradients: momentum with factor β_g,
whatever β_l is. Where the rate changes within a round, 1/K_i is η over the sum of the rates, which keeps
that true.
"""

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Shift
from fedacg.methods.rules import ServerRule, State, Totals
from fedacg.methods.visit import Assignment


class EmbeddedMomentum(Shift):
    """g ← g + β_l m/K_i"""

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self.shift = assignment.broadcast["m"] * (self.beta * assignment.round.lr / assignment.total_lr)


class DriftControl(ServerRule):
    """m ← −Δ/η + (β_g − β_l)m;  θ ← θ − αηm"""

    def __init__(self, beta_local: float, beta_global: float, alpha: float) -> None:
        self.left, self.alpha = beta_global - beta_local, alpha

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "m": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {"phi": state["theta"], "m": state["m"]}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        m = (state["m"] * self.left).sub_(totals["delta"], alpha=1 / round.lr)
        return {"theta": torch.sub(state["theta"], m, alpha=self.alpha * round.lr), "m": m}


def fedadc(beta_local: float, beta_global: float, alpha: float) -> Method:
    rule = DriftControl(beta_local, beta_global, alpha)
    return Method(rule, objective=(Empirical(), EmbeddedMomentum(beta_local)))
