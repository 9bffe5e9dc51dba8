"""FedGLOMO: momentum with reduced variance at the server, by local updates from the last two models.

    server   broadcast φ = θ_t and θ_{t−1}
    client   K steps w ← w − η v_k from θ_t, and from θ_{t−1} with the same batches, where
             v_k = g(w_k; B_k) + (1 − a)(v_{k−1} − g(w_{k−1}; B_k)),  v_0 = g(w_0; B_0)
             sends A_i = θ_t − w_K and A'_i, the same of the other trajectory
    server   u ← βĀ + (1 − β)(u + Ā − Ā'),  Ā = Σ ω_i A_i;  θ_{t+1} = θ_t − η_g u

u starts as Ā in the first round, which has no θ_{t−1}: started at 0 it would move by βĀ only. With β = 1 the
server averages, and with a = 1 as well this is FedAvg. Four gradients per step. Both trajectories take plain SGD
steps, with weight decay and the clip if there are any; optimisers with a state and corrections are refused.

Das, Acharya, Hashemi, Sanghavi, Dhillon, Topcu, "Faster non-convex federated learning via global and local
momentum", UAI 2022, https://arxiv.org/abs/2012.04061

    fedacg run quickstart --method fedglomo:beta=0.5
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.core.vector import clip
from fedacg.errors import InputError
from fedacg.methods.method import Method
from fedacg.methods.parts import Gradient, LocalStep
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Average, ServerRule, State, Totals
from fedacg.methods.storm import Storm
from fedacg.methods.visit import Assignment, Departure


class TwoTrajectories(LocalStep):
    """v_k of the trajectory from θ_t; the one from θ_{t−1} is followed beside it."""

    fuses = False
    corrected = False

    def __init__(self, a: float) -> None:
        self.a = a

    def begin(self, assignment: Assignment) -> None:
        local = assignment.local
        if local.optimiser != "sgd" or local.momentum:
            raise InputError(
                "method.name = 'fedglomo': its two trajectories take plain steps; needs local.optimiser = 'sgd' "
                "and local.momentum = 0"
            )
        self._clip, self._decay, self._rates = local.clip, local.weight_decay, iter(assignment.rates[0])
        self._start = assignment.broadcast["previous"]
        self._w = self._start.clone()
        self._storm, self._other = Storm(self.a), Storm(self.a)

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        v = self._storm.direction(gradient, w).clone()
        other = self._other.direction(gradient, self._w)
        if self._clip:
            clip(other, self._clip)
        if self._decay:
            other.add_(self._w, alpha=self._decay)
        self._w.add_(other, alpha=-next(self._rates))
        return v

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.send("other", self._w - self._start)


class GlobalMomentum(ServerRule):
    """u ← βĀ + (1 − β)(u + Ā − Ā');  θ ← θ − η_g u"""

    def __init__(self, beta: float, server_lr: float) -> None:
        self.beta, self.server_lr = beta, server_lr

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "previous": theta, "u": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {"phi": state["theta"], "previous": state["previous"]}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {"delta": (reply.delta, reply.weight), "other": (reply.extras["other"], reply.weight)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        delta, theta = totals["delta"], state["theta"]  # −Ā
        u = -delta
        if bool(state["u"].any()):
            u = u.mul_(self.beta).add_(state["u"] - delta + totals["other"], alpha=1 - self.beta)
        return {"theta": torch.sub(theta, u, alpha=self.server_lr), "previous": theta, "u": u}

    def in_place_of_average(self, make: Callable[[Average], ServerRule]) -> ServerRule:
        raise InputError(
            "u is its momentum already, and the second trajectory must start where the last round did"
        )


def fedglomo(a: float, beta: float, server_lr: float) -> Method:
    return Method(GlobalMomentum(beta, server_lr), step=TwoTrajectories(a))
