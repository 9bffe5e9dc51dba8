"""FedPD: a primal-dual method in which every client continues from its own last point.

    client   w starts at its own last w_i, at φ = θ on its first visit;  w ← w − η(g(w) + λ_i + μ(w − θ))
             then keep w_i and λ_i ← λ_i + μ(w_i − θ)
    server   θ ← mean_N(w_i + λ_i/μ)

As clients send Δ_i = w_i − θ, the server knows the mean of all λ_i and nothing else need be sent. With g_i = −λ_i
and h = −mean_N(λ_i) these are FedDyn's equations: the starting point is the only difference, and with own_start =
0, where clients start at θ, the two are the same. The server's mean is over all N clients, so everybody must take
part in every round. Rounds without communication, which the paper also allows, are not modelled.

Zhang, Hong, Dhople, Yin, Liu, "FedPD: A federated learning framework with adaptivity to non-IID data", IEEE
Transactions on Signal Processing 2021, https://arxiv.org/abs/2005.11418

    fedacg run quickstart --method fedpd --set data.clients=20 --set cohort.size=20
"""

from collections.abc import Callable

from torch import Tensor

from fedacg.core.round import Message
from fedacg.methods.feddyn import DynamicRegulariser, DynamicServer
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical
from fedacg.methods.visit import Assignment, Departure


class PrimalDual(DynamicRegulariser):
    """λ_i + μ(w − θ), from the client's own last w_i"""

    fuses = False

    def __init__(self, mu: float, own_start: bool) -> None:
        super().__init__(mu)
        self.own_start = own_start

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self._phi, self._w = assignment.phi, assignment.flat.w
        self._last = assignment.kept.get("w") if self.own_start else None

    def start(self, point: Tensor) -> Tensor:
        return point if self._last is None else self._last

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.send("delta", self._w - self._phi)

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {**super().keep(arrived), "w": self._w}


class PrimalDualServer(DynamicServer):
    """θ ← mean_N(w_i + λ_i/μ)"""

    needs = frozenset({"full participation"})


def fedpd(mu: float, own_start: float) -> Method:
    return Method(PrimalDualServer(mu), objective=(Empirical(), PrimalDual(mu, own_start == 1)))
