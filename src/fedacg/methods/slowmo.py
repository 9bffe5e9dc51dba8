"""SlowMo: server momentum on the pseudo-gradient Δ/η, so that it does not depend on the learning rate.

    server   u ← βu − Σ ω_i Δ_i/η_t;  θ ← θ − α η_t u;  u starts at zero

η_t is the rate that round t starts with. At a constant rate and α = 1 it is FedAvgM.
"""

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.rules import ServerRule, State, Totals


class SlowMomentum(ServerRule):
    """u ← βu − Δ/η;  θ ← θ − αηu"""

    def __init__(self, beta: float, alpha: float) -> None:
        self.beta, self.alpha = beta, alpha

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "u": torch.zeros_like(theta)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        u = (state["u"] * self.beta).sub_(totals["delta"], alpha=1 / round.lr)
        return {"theta": torch.sub(state["theta"], u, alpha=self.alpha * round.lr), "u": u}

    def momentum(self, state: State) -> Tensor | None:
        return state["u"]


def slowmo(beta: float, alpha: float) -> Method:
    return Method(SlowMomentum(beta, alpha))
