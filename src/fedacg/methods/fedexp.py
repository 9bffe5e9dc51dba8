"""FedExP: the less the clients' updates agree, the longer the server step, as in projections onto convex sets.

server   η_g = max(1, Σ ω_i ‖Δ_i‖²/(2(‖Δ‖² + Mε))),  Δ = Σ ω_i Δ_i, M the number of replies
         θ ← θ + η_g Δ;  the mean of the last two θ is evaluated and released
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import ServerRule, State, Totals


class Extrapolation(ServerRule):
    """θ ← θ + max(1, Σ ω_i ‖Δ_i‖²/(2(‖Δ‖² + Mε))) Δ"""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "model": theta.clone()}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {**super().collect(reply), "squares": (reply.delta.square().sum(), reply.weight)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        delta = totals["delta"]
        lr = float(totals["squares"]) / (2 * (float(delta.square().sum()) + totals.count * self.epsilon))
        theta = torch.add(state["theta"], delta, alpha=max(1.0, lr))
        return {"theta": theta, "model": (state["theta"] + theta) / 2}


def fedexp(epsilon: float) -> Method:
    return Method(Extrapolation(epsilon))
