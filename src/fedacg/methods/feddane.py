"""FedDANE: every client's gradient is corrected towards the whole cohort's, by full gradients at φ.

    first    clients send ∇f_i(φ) over all their examples;  ḡ = Σ ω_i ∇f_i(φ)
    client   w ← w − η(g(w) + ḡ − ∇f_i(φ) + μ(w − φ))
    server   θ ← θ + η_g Σ ω_i Δ_i

Both exchanges are with one cohort, as in the authors' code; the paper draws a second. They report
that it does worse than FedProx and FedAvg.
"""

from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Proximal, Shift
from fedacg.methods.rules import Around, Average, State
from fedacg.methods.visit import Assignment


class GradientShift(Shift):
    """g ← g + ḡ − ∇f_i(φ)"""

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self.shift = assignment.broadcast["gradient"] - assignment.full_gradient()


class MeanGradient(Around):
    """Broadcasts the ḡ of the round's first exchange; θ moves as the inner rule has it."""

    first_exchange = True

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        sent = super().broadcast(state, round)
        return {**sent, "gradient": state["gradient"]} if "gradient" in state else sent


def feddane(mu: float, server_lr: float) -> Method:
    return Method(MeanGradient(Average(server_lr)), objective=(Empirical(), GradientShift(), Proximal(mu)))
