"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates at the server and at every client.

client   w ← w − η(g(w) + c − c_i);  keeps c_i⁺, sends Δ_i and c_i⁺ − c_i, where
         option II  c_i⁺ = c_i − c − Δ_i/(K_i η)        option I  c_i⁺ = ∇f_i(θ), over all its examples
server   θ ← θ + η_g mean_S Δ_i;  c ← c + (1/N) Σ_S (c_i⁺ − c_i);  all start at zero

fedacg run quickstart --method scaffold:scaffold
fedacg run quickstart --method scaffold:scaffold+acg:option=1
"""

from dataclasses import replace

import torch

from fedacg.core.vector import add_scaled
from fedacg.methods import Entry, Method, Option, positive
from fedacg.methods.parts import Correction, Empirical
from fedacg.methods.rules import Around, Average


class ControlVariate(Correction):
    """g ← g + c − c_i"""

    fuses = True

    def __init__(self, option):
        self.option = option

    def begin(self, assignment):
        self._c, self._own = assignment.broadcast["c"], assignment.state("c")
        self._shift, self._total_lr = self._c - self._own, assignment.total_lr
        self._full = assignment.full_gradient() if self.option == 1 else None

    def correct(self, g, w):
        g.add_(self._shift[: len(w)])

    def end(self, delta, departure):
        option2 = add_scaled(-self._c, delta, -1 / self._total_lr)
        departure.send("c", option2 if self._full is None else self._full - self._own)

    def keep(self, arrived):
        return {"c": self._own + arrived("c")}


class Controls(Around):
    """c ← c + (1/N) Σ_S (c_i⁺ − c_i); θ moves by the plain mean of the updates, as the inner rule has it."""

    def init(self, theta):
        return {**super().init(theta), "c": torch.zeros_like(theta)}

    def broadcast(self, state, round):
        return {**super().broadcast(state, round), "c": state["c"]}

    def collect(self, reply):
        return {**super().collect(replace(reply, weight=reply.share)), "c": (reply.extras["c"], 1.0)}

    def step(self, state, totals, round):
        return {**super().step(state, totals, round), "c": state["c"] + totals["c"] / round.clients}


scaffold = Entry(
    name="scaffold",
    title="SCAFFOLD",
    reference="Karimireddy et al., ICML 2020",
    equation="w ← w − η(g + c − c_i); c_i⁺ = c_i − c − Δ_i/(Kη); c ← c + 1/N Σ(c_i⁺ − c_i)",
    options={"option": Option(2, low=1, high=2, only=(1, 2)), "server_lr": positive(1.0)},
    build=lambda option, server_lr: Method(Controls(Average(server_lr)), (Empirical(), ControlVariate(option))),
)
