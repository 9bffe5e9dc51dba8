"""FedDC: every client knows how far it has drifted, and both sides correct for it.

    server   broadcast φ = θ and g
    client   minimise ℓ_i(w) + α/2 ‖w − (φ − h_i)‖² + ⟨w, g − g_i⟩ from w = φ
             then h_i ← h_i + Δ_i and g_i⁺ = g_i − g − Δ_i/(K_i η), both kept; sends Δ_i and g_i⁺ − g_i
    server   h ← h + (1/N) Σ_S Δ_i;  θ ← mean_S(w_i) + h;  g ← g + (1/N) Σ_S (g_i⁺ − g_i)

h is the mean of the drifts h_i over all N clients, as in the authors' code. The text of their paper takes the
mean over the cohort, mean_S(w_i + h_i), which is the same when everybody takes part; when few do, θ then jumps
by the whole drift of whoever happens to be sampled. mean_S is the plain mean; all states start at zero.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedacg.methods.method import Method
from fedacg.methods.objective import Assignment, Correction, Departure
from fedacg.methods.rules import Reply, ServerRule, State


class DriftCorrection(Correction):
    """The gradient of α/2 ‖w − (φ − h_i)‖² + ⟨w, g − g_i⟩, which is α(w − φ + h_i) + g − g_i."""

    pulls = True

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def begin(self, assignment: Assignment) -> None:
        self._h, self._g, self._mean_g = assignment.state("h"), assignment.state("g"), assignment.broadcast["g"]
        self._step_size = assignment.steps * assignment.lr
        self._centre = assignment.phi - self._h
        self._linear = self._mean_g - self._g
        self._scratch = assignment.scratch

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.add_(torch.sub(w, self._centre, out=self._scratch), alpha=self.alpha).add_(self._linear)

    def end(self, delta: Tensor, departure: Departure) -> None:
        arrived = departure.send("delta", delta)
        change = departure.send("g", torch.sub(-self._mean_g, arrived, alpha=1 / self._step_size))
        departure.keep["h"], departure.keep["g"] = self._h + arrived, self._g + change


class DriftServer(ServerRule):
    """h ← h + (1/N) Σ_S Δ_i;  θ ← φ + mean_S(Δ_i) + h;  g ← g + (1/N) Σ_S (g_i⁺ − g_i)"""

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "h": torch.zeros_like(theta), "g": torch.zeros_like(theta)}

    def broadcast(self, state: State) -> dict[str, Tensor]:
        return {"phi": state["theta"], "g": state["g"]}

    def step(self, state: State, replies: Iterable[Reply], clients: int) -> State:
        total, change, count = torch.zeros_like(state["theta"]), torch.zeros_like(state["g"]), 0
        for reply in replies:
            total.add_(reply.delta)
            change.add_(reply.extras["g"])
            count += 1
        h = torch.add(state["h"], total, alpha=1 / clients)
        g = torch.add(state["g"], change, alpha=1 / clients)
        return {"theta": total.div_(count).add_(state["theta"]).add_(h), "h": h, "g": g}


def feddc(alpha: float) -> Method:
    return Method(DriftServer(), corrections=(DriftCorrection(alpha),), down=2, sends=("delta", "g"), state=2)
