"""FedAMS: AMSGrad at the server; and FedCAMS, the same with signs uploaded and their error fed back.

    server   m ← β₁m + (1−β₁)Δ;  v ← β₂v + (1−β₂)Δ²;  v̂ ← max(v̂, v, ε);  θ ← θ + η_g m/√v̂

Δ = Σ ω_i Δ_i; m and v start at zero, v̂ at ε. The authors' code corrects m and v for their start as Adam does; the
paper, and this, does not. FedCAMS is fedams+sign.
"""

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.compress import add_sign
from fedacg.methods.method import Method
from fedacg.methods.rules import ServerRule, State, Totals


class AMSGrad(ServerRule):
    """v̂ ← max(v̂, v, ε);  θ ← θ + η_g m/√v̂"""

    def __init__(self, beta1: float, beta2: float, epsilon: float, server_lr: float) -> None:
        self.beta1, self.beta2, self.epsilon, self.server_lr = beta1, beta2, epsilon, server_lr

    def init(self, theta: Tensor) -> State:
        m, v, largest = torch.zeros_like(theta), torch.zeros_like(theta), torch.full_like(theta, self.epsilon)
        return {"theta": theta, "m": m, "v": v, "largest": largest}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        delta = totals["delta"]
        m = (state["m"] * self.beta1).add_(delta, alpha=1 - self.beta1)
        v = (state["v"] * self.beta2).addcmul_(delta, delta, value=1 - self.beta2)
        largest = torch.maximum(state["largest"], v)  # which started at ε, and never falls
        theta = torch.addcdiv(state["theta"], m, largest.sqrt(), value=self.server_lr)
        return {"theta": theta, "m": m, "v": v, "largest": largest}


def fedams(beta1: float, beta2: float, epsilon: float, server_lr: float) -> Method:
    return Method(AMSGrad(beta1, beta2, epsilon, server_lr))


def fedcams(beta1: float, beta2: float, epsilon: float, server_lr: float) -> Method:
    return add_sign(fedams(beta1, beta2, epsilon, server_lr))
