"""STEM: clients step against a momentum gradient estimate, which is averaged together with the model.

    server   broadcast φ = θ, d and the rate η' of the last local step before them
    client   w_0 = φ, w_{−1} = φ + η'd, d_0 = d;  for k = 1 … K, on one batch B_k:
             d_k = g(w_{k−1}; B_k) + (1 − a)(d_{k−1} − g(w_{k−2}; B_k));  w_k = w_{k−1} − η d_k
             sends Δ_i = w_K − φ and d_K
    server   θ ← θ + Σ ω_i Δ_i;  d ← Σ ω_i d_K

The paper averages x and d before the last step of a round and has the server take that step, x ← x̄ − ηd̄. With
one η for all this is the mean of the points after the step, which is what θ is here, and φ + η'd is x̄. As there
is no d before the first round, its first step goes against the plain gradient: a start at d = 0 would shrink it to
a·g. In the paper everybody takes part in every round; that d is sent to whoever is sampled is an extension of
ours, and so are the weights ω_i. a is constant. With a = 1 this is FedAvg.

Khanduri, Sharma, Yang, Hong, Liu, Rajawat, Varshney, "STEM: A stochastic two-sided momentum algorithm achieving
near-optimal sample and communication complexities for federated learning", NeurIPS 2021,
https://arxiv.org/abs/2106.10435

    fedacg run quickstart --method stem:a=0.2
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.errors import InputError
from fedacg.methods.method import Method
from fedacg.methods.parts import Gradient, LocalStep
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Average, ServerRule, State, Totals
from fedacg.methods.storm import Storm
from fedacg.methods.visit import Assignment, Departure


class MomentumStep(LocalStep):
    """d_k, which begins where the server's d ended"""

    def __init__(self, a: float) -> None:
        self.a = a

    def begin(self, assignment: Assignment) -> None:
        d, shape = assignment.broadcast["d"], assignment.scratch.shape
        self._last = torch.tensor([rates[-1] for rates in assignment.rates], dtype=d.dtype)
        self._storm = Storm(self.a)
        if bool(d.any()):
            previous = assignment.phi + assignment.broadcast["lr"] * d
            self._storm = Storm(self.a, d.expand(shape).clone(), previous.expand(shape).clone())

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        return self._storm.direction(gradient, w)

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.send("d", self._storm.v)
        departure.attach("lr", self._last)


class TwoSidedServer(ServerRule):
    """θ ← θ + Σ ω_i Δ_i;  d ← Σ ω_i d_K"""

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "d": torch.zeros_like(theta), "lr": theta.new_zeros(1)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {"phi": state["theta"], "d": state["d"], "lr": state["lr"]}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {
            "delta": (reply.delta, reply.weight),
            "d": (reply.extras["d"], reply.weight),
            "lr": (reply.extras["lr"], reply.weight),
        }

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return {"theta": state["theta"] + totals["delta"], "d": totals["d"], "lr": totals["lr"]}

    def in_place_of_average(self, make: Callable[[Average], ServerRule]) -> ServerRule:
        raise InputError(
            "its d belongs to the point before the last step, and a lookahead would move φ away from it"
        )


def stem(a: float) -> Method:
    return Method(TwoSidedServer(), step=MomentumStep(a))
