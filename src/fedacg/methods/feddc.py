"""FedDC: every client knows how far it has drifted, and both sides correct for it.

    server   broadcast φ = θ and g
    client   minimise ℓ_i(w) + α/2 ‖w − (φ − h_i)‖² + ⟨w, g − g_i⟩ from w = φ
             then h_i ← h_i + Δ_i and g_i⁺ = g_i − g − Δ_i/(K_i η), both kept; sends Δ_i and g_i⁺ − g_i
    server   h ← h + (1/N) Σ_S Δ_i;  θ ← mean_S(w_i) + h;  g ← g + (1/N) Σ_S (g_i⁺ − g_i)

h is the mean of the drifts h_i over all N clients, as in the authors' code. The text of their paper takes the
mean over the cohort, mean_S(w_i + h_i), which is the same when everybody takes part; when few do, θ then jumps
by the whole drift of whoever happens to be sampled. mean_S is the plain mean; all states start at zero.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedacg.core.round import Message, Round
from fedacg.core.vector import add_scaled, rows_of
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Pull
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import ServerRule, State, Totals
from fedacg.methods.visit import Assignment, Departure


class DriftCorrection(Pull):
    """The gradient of α/2 ‖w − (φ − h_i)‖² + ⟨w, g − g_i⟩: a pull towards φ − h_i − (g − g_i)/α."""

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self._h, self._g, self._mean_g = assignment.state("h"), assignment.state("g"), assignment.broadcast["g"]
        self._total_lr = assignment.total_lr
        self._linear = self._mean_g - self._g
        if self.mu:
            self.anchor = (assignment.phi - self._h).sub_(self._linear, alpha=1 / self.mu)

    def offset(self, w: Tensor, out: Tensor) -> Tensor:
        return super().offset(w, out) if self.mu else rows_of(self._linear, w)

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.send("delta", delta)
        departure.send("g", add_scaled(-self._mean_g, departure.arrived("delta"), -1 / self._total_lr))

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"h": self._h + arrived("delta"), "g": self._g + arrived("g")}


class DriftServer(ServerRule):
    """h ← h + (1/N) Σ_S Δ_i;  θ ← φ + mean_S(Δ_i) + h;  g ← g + (1/N) Σ_S (g_i⁺ − g_i)"""

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "h": torch.zeros_like(theta), "g": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {"phi": state["theta"], "g": state["g"]}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {"delta": (reply.delta, 1.0), "g": (reply.extras["g"], 1.0)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        h = torch.add(state["h"], totals["delta"], alpha=1 / round.clients)
        g = torch.add(state["g"], totals["g"], alpha=1 / round.clients)
        mean = totals["delta"] / totals.count
        return {"theta": mean.add_(state["theta"]).add_(h), "h": h, "g": g}


def feddc(alpha: float) -> Method:
    return Method(DriftServer(), objective=(Empirical(), DriftCorrection(alpha)))
