"""Mime and MimeLite: clients step with the server's momentum, which only full gradients update.

    first    clients send ∇f_i(φ) over all their examples;  c = Σ ω_i ∇f_i(φ)
    client   w ← w − η(G + βm), m as it was broadcast
             Mime  G = g(w; B) − g(φ; B) + c, on one batch B      MimeLite  G = g(w; B)
    server   θ ← θ + η_g Σ ω_i Δ_i;  m ← βm + c, by the gradient at φ and never by Δ;  m starts at zero

The paper steps with (1−β)G + βm; here, as in heavy-ball momentum, G is not scaled down.
"""

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Gradient, LocalStep, Shift
from fedacg.methods.rules import Around, Average, ServerRule, State, Totals
from fedacg.methods.visit import Assignment


class ServerMomentum(Shift):
    """g ← g + βm"""

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self.shift = assignment.broadcast["momentum"] * self.beta


class ReducedVariance(LocalStep):
    """g(w; B) − g(φ; B) + c"""

    def begin(self, assignment: Assignment) -> None:
        self._phi, self._c = assignment.phi, assignment.broadcast["gradient"]

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        return gradient.onto(gradient(), self._phi, times=-1).add_(self._c)


class GradientMomentum(Around):
    """m ← βm + c, with c from the first exchange of the round; θ moves as the inner rule has it"""

    first_exchange = True

    def __init__(self, beta: float, inner: ServerRule, *, sends_gradient: bool) -> None:
        super().__init__(inner)
        self.beta, self.sends_gradient = beta, sends_gradient

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "momentum": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        sent = {**super().broadcast(state, round), "momentum": state["momentum"]}
        return {**sent, "gradient": state["gradient"]} if self.sends_gradient and "gradient" in state else sent

    def step(self, state: State, totals: Totals, round: Round) -> State:
        m = torch.add(state["gradient"], state["momentum"], alpha=self.beta)
        return {**super().step(state, totals, round), "momentum": m}


def mime(beta: float, server_lr: float) -> Method:
    rule = GradientMomentum(beta, Average(server_lr), sends_gradient=True)
    return Method(rule, objective=(Empirical(), ServerMomentum(beta)), step=ReducedVariance())


def mimelite(beta: float, server_lr: float) -> Method:
    rule = GradientMomentum(beta, Average(server_lr), sends_gradient=False)
    return Method(rule, objective=(Empirical(), ServerMomentum(beta)))
