"""FedGMT: clients are held to the predictions of a moving average of the server's models.

    server   broadcast φ = θ and e
    client   minimise ℓ_i(w) + γ·KL(softmax(z_e/T) ‖ softmax(z/T)) − ⟨g_i, w⟩ + α/2 ‖w − φ‖²
             then keep g_i ← g_i − αΔ_i
    server   h ← h − (α/N) Σ_S Δ_i;  θ ← mean_S(w_i) − h/α;  e ← δe + (1 − δ)θ

z_e are the logits of e without gradient; e starts at the first θ. The terms with g_i, α and h are FedDyn's, and
with γ = 0 this is FedDyn. The divergence is taken without the factor T² that some put in front: γ takes it in.

Li, Liu, Cui, Hu, Li, "One arrow, two hawks: Sharpness-aware minimization for federated learning via global model
trajectory", ICML 2025, https://openreview.net/forum?id=80mK2Mqaph

    fedacg run quickstart --method fedgmt:gamma=0.5
"""

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fedacg.core.round import Round
from fedacg.methods.feddyn import DynamicRegulariser, DynamicServer
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Forward, Loss
from fedacg.methods.rules import State, Totals
from fedacg.methods.visit import Assignment


class Trajectory(Loss):
    """γ·KL(softmax(z_e/T) ‖ softmax(z/T)), mean over the batch"""

    def __init__(self, gamma: float, temperature: float) -> None:
        self.gamma, self.temperature = gamma, temperature

    def begin(self, assignment: Assignment) -> None:
        broadcast = assignment.broadcast
        self._teacher = assignment.copies.load("average", broadcast["average"], broadcast["buffers"])

    def __call__(self, forward: Forward) -> Tensor:
        with torch.no_grad():
            teacher = log_softmax(forward.outputs_of(self._teacher) / self.temperature, dim=1)
        student = log_softmax(forward.logits / self.temperature, dim=1)
        return self.gamma * kl_div(student, teacher, reduction="batchmean", log_target=True)


class TrajectoryServer(DynamicServer):
    """FedDyn's, and e ← δe + (1 − δ)θ with the θ that it has just found"""

    def __init__(self, alpha: float, decay: float) -> None:
        super().__init__(alpha)
        self.decay = decay

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "average": theta.clone()}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {**super().broadcast(state, round), "average": state["average"]}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        moved = super().step(state, totals, round)
        average = (state["average"] * self.decay).add_(moved["theta"], alpha=1 - self.decay)
        return {**moved, "average": average}


def fedgmt(alpha: float, gamma: float, temperature: float, decay: float) -> Method:
    return Method(
        TrajectoryServer(alpha, decay),
        objective=(Empirical(), Trajectory(gamma, temperature), DynamicRegulariser(alpha)),
    )
