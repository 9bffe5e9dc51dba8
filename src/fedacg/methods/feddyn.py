"""FedDyn: every client's objective is regularised so that its own optimum becomes the common one.

    client   minimise ℓ_i(w) − ⟨g_i, w⟩ + α/2 ‖w − φ‖² from w = φ = θ;  then keep g_i ← g_i − αΔ_i
    server   h ← h − (α/N) Σ_S Δ_i;  θ ← mean_S(w_i) − h/α

mean_S is the plain mean over the cohort, as in its paper: the optimum it finds is that of Σ_i ℓ_i. The state
g_i belongs to the client and starts at zero; h is the mean of g_i over all N clients, at every instant.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedacg.core.round import Message, Round
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Pull
from fedacg.methods.reply import Reply, ReplyRows, Term, Terms
from fedacg.methods.rules import ServerRule, State, Totals
from fedacg.methods.visit import Assignment


class DynamicRegulariser(Pull):
    """The gradient of −⟨g_i, w⟩ + α/2 ‖w − φ‖², which is α(w − φ) − g_i: a pull towards φ + g_i/α."""

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self._g = assignment.state("g")
        self.anchor = torch.add(assignment.phi, self._g, alpha=1 / self.mu)

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"g": torch.sub(self._g, arrived("delta"), alpha=self.mu)}


class DynamicServer(ServerRule):
    """h ← h − (α/N) Σ_S Δ_i;  θ ← φ + mean_S(Δ_i) − h/α"""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "h": torch.zeros_like(theta)}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {"delta": (reply.delta, 1.0)}

    def collect_rows(self, replies: ReplyRows) -> Mapping[str, Terms]:
        return {"delta": (replies.deltas, 1.0)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        h = torch.sub(state["h"], totals["delta"], alpha=self.alpha / round.clients)
        mean = totals["delta"] / totals.count
        theta = mean.add_(state["theta"]).sub_(h, alpha=1 / self.alpha)
        return {"theta": theta, "h": h}


def feddyn(alpha: float) -> Method:
    return Method(DynamicServer(alpha), objective=(Empirical(), DynamicRegulariser(alpha)))
