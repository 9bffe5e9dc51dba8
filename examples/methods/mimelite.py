"""MimeLite (Karimireddy et al., NeurIPS 2021): clients step with a momentum that only full gradients update.

first    clients send ∇f_i(θ) over all their examples;  c = Σ ω_i ∇f_i(θ)
client   w ← w − η(g(w; B) + βm), m as it was broadcast
server   θ ← θ + η_g Σ ω_i Δ_i;  m ← βm + c, by the gradient at θ and never by Δ

fedacg run quickstart --method mimelite:mimelite --set local.lr=0.02
"""

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods import Entry, Method, fraction, positive
from fedacg.methods.parts import Correction, Empirical
from fedacg.methods.rules import Around, Average, State, Totals
from fedacg.methods.visit import Assignment


class BroadcastMomentum(Correction):
    """g ← g + βm"""

    fuses = True

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def begin(self, assignment: Assignment) -> None:
        self._m = assignment.broadcast["momentum"]

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.add_(self._m, alpha=self.beta)


class GradientMomentum(Around):
    """m ← βm + c, with c from the first exchange of the round; θ moves as the inner rule has it"""

    first_exchange = True

    def __init__(self, beta: float, inner: Average) -> None:
        super().__init__(inner)
        self.beta = beta

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "momentum": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {**super().broadcast(state, round), "momentum": state["momentum"]}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        moved = super().step(state, totals, round)
        return {**moved, "momentum": self.beta * state["momentum"] + state["gradient"]}


def build(beta: float, server_lr: float) -> Method:
    return Method(GradientMomentum(beta, Average(server_lr)), objective=(Empirical(), BroadcastMomentum(beta)))


mimelite = Entry(
    name="mimelite",
    title="MimeLite",
    reference="Karimireddy et al., NeurIPS 2021",
    equation="w ← w − η(g + βm); m ← βm + Σ ω_i ∇f_i(θ); θ ← θ + Δ",
    options={"beta": fraction(0.9), "server_lr": positive(1.0)},
    build=build,
)
