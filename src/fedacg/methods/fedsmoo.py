"""FedSMOO: FedDyn with sharpness-aware steps whose perturbations are brought to agree as the models are.

    server   broadcast φ = θ and s
    client   ε = ρ u/‖u‖₂, u = g(w; B) − μ_i − s;  G = g(w + ε; B);  μ_i ← μ_i + ε − s, at every step
             w ← w − η(G − g_i + α(w − φ));  then keep g_i ← g_i − αΔ_i and μ_i, send Δ_i and μ_i
    server   h ← h − (α/N) Σ_S Δ_i;  θ ← mean_S(w_i) − h/α;  s ← ρ μ̄/‖μ̄‖₂, μ̄ = mean_S μ_i

As in FedDyn, whose α is 1/β in the paper of FedSMOO. All states start at zero, so the first visit of a first round
is SAM's; with ρ = 0 everything that is new stays zero and this is FedDyn. Two gradients per step.

Sun, Shen, Chen, Ding, Tao, "Dynamic regularized sharpness aware minimization in federated learning: Approaching
global consistency and smooth landscape", ICML 2023, https://arxiv.org/abs/2305.11584

    fedacg run quickstart --method fedsmoo:rho=0.05
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedacg.core.round import Message, Round
from fedacg.methods.feddyn import DynamicRegulariser, DynamicServer
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Gradient, LocalStep
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import State, Totals
from fedacg.methods.visit import Assignment, Departure

_TINY = 1e-16


class AgreedAscent(LocalStep):
    """g(w + ε; B), ε along g − μ_i − s"""

    def __init__(self, rho: float) -> None:
        self.rho = rho

    def begin(self, assignment: Assignment) -> None:
        self._s, self._steps = assignment.broadcast["s"], assignment.steps
        self._taken = 0
        # −μ_i − s, which each step changes by s − ε. The s's are added up as they are used, which saves a pass.
        self._minus = -(assignment.state("mu") + self._s)

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        minus = self._minus[: len(w)]
        u = gradient.onto(lambda g: torch.add(minus, self._s, alpha=self._taken, out=g))
        scale = self.rho / (torch.linalg.vector_norm(u, dim=-1, keepdim=True) + _TINY)
        minus.addcmul_(u, scale, value=-1)
        self._taken += 1
        return gradient.last(torch.addcmul(w, u, scale, out=u))

    def end(self, delta: Tensor, departure: Departure) -> None:
        self._mu = -(self._minus + (self._steps + 1) * self._s)
        departure.send("mu", self._mu)

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"mu": self._mu}


class AgreedServer(DynamicServer):
    """FedDyn's, and s ← ρ μ̄/‖μ̄‖₂"""

    def __init__(self, alpha: float, rho: float) -> None:
        super().__init__(alpha)
        self.rho = rho

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "s": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {**super().broadcast(state, round), "s": state["s"]}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {**super().collect(reply), "mu": (reply.extras["mu"], reply.share)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        mean = totals["mu"]
        s = mean * (self.rho / (torch.linalg.vector_norm(mean) + _TINY))
        return {**super().step(state, totals, round), "s": s}


def fedsmoo(alpha: float, rho: float) -> Method:
    return Method(
        AgreedServer(alpha, rho), objective=(Empirical(), DynamicRegulariser(alpha)), step=AgreedAscent(rho)
    )
