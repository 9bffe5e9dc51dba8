"""FedMoSWA: SCAFFOLD whose server variate follows the newest client variates with a momentum of its own.

    client   w ← w − η(g(w) + c − c_i);  keeps c_i⁺ = c_i − c − Δ_i/(K_i η), sends Δ_i and c_i⁺ − c
    server   θ ← θ + η_g mean_S Δ_i;  c ← c + γ mean_S(c_i⁺ − c);  c and all c_i start at zero

Its local rate falls to zero within every round: set `local.within` to `linear`. K_i η is the sum of the rates.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedacg.core.round import Message, Round
from fedacg.core.vector import add_scaled
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Average, ServerRule, State, Totals
from fedacg.methods.scaffold import Controls, ControlVariate
from fedacg.methods.visit import Departure


class NewestVariate(ControlVariate):
    """g ← g + c − c_i;  c_i⁺ is sent as its difference from c"""

    def __init__(self) -> None:
        super().__init__(option=2)

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.send("c", add_scaled(self._own - 2 * self._c, delta, -1 / self._total_lr))

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"c": self._c + arrived("c")}


class MomentumControls(Controls):
    """c ← c + γ mean_S(c_i⁺ − c)"""

    def __init__(self, gamma: float, inner: ServerRule) -> None:
        super().__init__(inner)
        self.gamma = gamma

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {**super().collect(reply), "c": (reply.extras["c"], reply.share)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        c = torch.add(state["c"], totals["c"], alpha=self.gamma)
        return {**super().step(state, totals, round), "c": c}


def fedmoswa(gamma: float, server_lr: float) -> Method:
    return Method(MomentumControls(gamma, Average(server_lr)), objective=(Empirical(), NewestVariate()))
