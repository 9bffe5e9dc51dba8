"""FedGloSS: FedDyn whose clients start at an ascent point of the server: where ACG looks ahead, it looks back.

    server   broadcasts φ = θ − ρ Δ/(‖Δ‖₂ + 10⁻¹⁶), Δ the mean update of the last round: against it the loss rises
    client   minimise ℓ_i(w) − ⟨g_i, w⟩ + α/2 ‖w − φ‖² from w = φ;  then keep g_i ← g_i − αΔ_i
    server   h ← h − (α/N) Σ_S Δ_i;  θ ← θ + mean_S Δ_i − h/α

In the first round φ = θ. The authors' clients take sharpness-aware steps as well: fedgloss+sam.
"""

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.feddyn import DynamicRegulariser, DynamicServer
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical
from fedacg.methods.rules import State, Totals


class LookBack(DynamicServer):
    """φ = θ − ρ Δ/‖Δ‖ is broadcast; θ moves as FedDyn's"""

    def __init__(self, rho: float, alpha: float) -> None:
        super().__init__(alpha)
        self.rho = rho

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "update": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        length = float(torch.linalg.vector_norm(state["update"])) + 1e-16
        return {"phi": torch.sub(state["theta"], state["update"], alpha=self.rho / length)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return {**super().step(state, totals, round), "update": totals["delta"] / totals.count}


def fedgloss(rho: float, alpha: float) -> Method:
    return Method(LookBack(rho, alpha), objective=(Empirical(), DynamicRegulariser(alpha)))
