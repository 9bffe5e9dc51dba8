"""FedGATE: every client tracks how its gradients differ from the mean; FedCOMGATE adds quantised uploads.

    client   w ← w − η(g(w) − δ_i);  sends Q_i = Q(Δ_i)
    server   θ ← θ + γ mean Q_i;  broadcasts q̄ = −mean Q_i/(K_i η)
    client   δ_i ← δ_i − Q_i/(K_i η) − q̄;  δ_i starts at zero

K_i η is the sum of the rates of the steps that made Δ_i; with as many steps for all it is the paper's
δ_i ← δ_i + (Q_i − Q̄)/K, of which this keeps Σ_i δ_i = 0 when they differ. A client learns q̄ of a round with the
next broadcast, so everybody must take part in every round. FedCOMGATE is fedgate+paq.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedacg.core.round import Message, Round
from fedacg.core.vector import add_scaled
from fedacg.methods.fedpaq import quantise_upload
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Shift
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Around, Average, State, Totals
from fedacg.methods.visit import Assignment


class GradientTracking(Shift):
    """g ← g − δ_i"""

    needs = frozenset({"full participation"})

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        # The kept δ_i lacks the mean of that round, which arrives only now.
        self.shift = assignment.broadcast["mean"] - assignment.state("tracked")
        self._total_lr = assignment.total_lr

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"tracked": add_scaled(-self.shift, arrived("delta"), -1 / self._total_lr)}


class MeanDirection(Around):
    """Broadcasts q̄ of the last round; θ moves by the plain mean of the updates, as the inner rule has it."""

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "mean": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {**super().broadcast(state, round), "mean": state["mean"]}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        plain = super().collect(replace(reply, weight=reply.share))
        return {**plain, "mean": (reply.delta, -reply.share / reply.total_lr)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return {**super().step(state, totals, round), "mean": totals["mean"]}


def fedgate(server_lr: float) -> Method:
    return Method(MeanDirection(Average(server_lr)), objective=(Empirical(), GradientTracking()))


def fedcomgate(bits: float, server_lr: float) -> Method:
    return quantise_upload(fedgate(server_lr), bits)
