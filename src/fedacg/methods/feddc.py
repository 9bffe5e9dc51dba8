"""FedDC: every client knows how far it has drifted, and both sides correct for it.

    server   broadcast φ = θ and g
    client   minimise ℓ_i(w) + α/2 ‖w − (φ − h_i)‖² + ⟨w, g − g_i⟩ from w = φ
             then h_i ← h_i + Δ_i and g_i⁺ = g_i − g − Δ_i/(K_i η), both kept; sends w_i + h_i and g_i⁺ − g_i
    server   θ ← mean_S(w_i + h_i);  g ← g + (1/N) Σ_S (g_i⁺ − g_i)

The drifts are averaged over the cohort S, as in the text of its paper; its authors' code averages them over
all N clients instead. h_i, g_i and g start at zero. mean_S is the plain mean.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedacg.methods.method import Entry, Method, rate
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
        h = self._h + delta
        change = departure.send("g", torch.sub(-self._mean_g, delta, alpha=1 / self._step_size))
        departure.send("delta", delta + h)
        departure.keep["h"], departure.keep["g"] = h, self._g + change


class DriftServer(ServerRule):
    """θ ← mean_S(w_i + h_i);  g ← g + (1/N) Σ_S (g_i⁺ − g_i)"""

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "g": torch.zeros_like(theta)}

    def broadcast(self, state: State) -> dict[str, Tensor]:
        return {"phi": state["theta"], "g": state["g"]}

    def step(self, state: State, replies: Iterable[Reply], clients: int) -> State:
        moved, change, count = torch.zeros_like(state["theta"]), torch.zeros_like(state["g"]), 0
        for reply in replies:
            moved.add_(reply.delta)
            change.add_(reply.extras["g"])
            count += 1
        return {
            "theta": torch.add(state["theta"], moved, alpha=1 / count),
            "g": torch.add(state["g"], change, alpha=1 / clients),
        }


def feddc(alpha: float) -> Method:
    return Method(DriftServer(), corrections=(DriftCorrection(alpha),), down=2, up=2, state=2)


FEDDC = Entry(
    name="feddc",
    title="FedDC",
    reference="Gao et al., CVPR 2022",
    equation="ℓ + α/2 ‖w − (φ − h_i)‖² + ⟨w, g − g_i⟩; θ ← mean(w_i + h_i)",
    options={"alpha": rate(0.01)},
    build=feddc,
)
