"""GHBM, generalised heavy-ball momentum: clients add the server's move over the last τ rounds to their steps.

    client   w ← w − ηg(w) + (β/K_i) D
    server   broadcasts D = (θ_t − θ_{t−τ})/τ;  θ ← θ + η_g Σ ω_i Δ_i

θ before the first round is the initial model. A good τ is the number of rounds until every client has taken part,
1/participation. All K_i steps together carry a client by βD, by the share of each step in the sum of the rates
where the rate changes within a round.
"""

from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Shift
from fedacg.methods.rules import Around, Average, ServerRule, State, Totals
from fedacg.methods.visit import Assignment


class HeavyBall(Shift):
    """g ← g − βD/(K_i η)"""

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self.shift = assignment.broadcast["way"] * (-self.beta / assignment.total_lr)


class PastModels(Around):
    """Keeps the last τ models; θ moves as the inner rule has it."""

    def __init__(self, tau: int, inner: ServerRule) -> None:
        super().__init__(inner)
        self.tau = tau

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), **{f"past {age}": theta.clone() for age in range(1, self.tau + 1)}}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        way = (state["theta"] - state[f"past {self.tau}"]) / self.tau
        return {**super().broadcast(state, round), "way": way}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        past = {f"past {age}": state[f"past {age - 1}"] for age in range(2, self.tau + 1)}
        return {**super().step(state, totals, round), "past 1": state["theta"], **past}


def ghbm(beta: float, tau: float, server_lr: float) -> Method:
    return Method(PastModels(int(tau), Average(server_lr)), objective=(Empirical(), HeavyBall(beta)))
