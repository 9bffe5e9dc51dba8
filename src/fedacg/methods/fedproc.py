"""FedProc: features are drawn to the prototype of their class, the mean feature of that class over all clients.

    server   broadcast φ = θ and the prototypes c_1 … c_C
    client   minimise α_t CE(z) + (1 − α_t) CE(⟨f, c_k/‖c_k‖⟩ over the classes k)
             f the features, α_t = min(1, t/T)
             sends Δ_i, the sum of the features of each class over its examples, and how many there were
    server   θ ← θ + η_g Σ ω_i Δ_i;  c_k ← the sum of the sums over the sum of the counts

A class that nobody of the cohort has keeps its prototype. One that nobody has had so far has none: it is left out
of the second softmax, and an example of such a class has plain cross-entropy for its loss, so the first round is
FedAvg's (the paper asks for prototypes before the first round instead). Each example's features are those of the
local step of the last epoch that saw it, so that no pass over the data is added. With T = 1, α_t = 1 in every
round: FedAvg.

Mu, Shen, Cheng, Geng, Fu, Zhang, Zhang, "FedProc: Prototypical contrastive federated learning on non-IID data",
Future Generation Computer Systems 2023, https://arxiv.org/abs/2109.12273

    fedacg run quickstart --method fedproc:rounds=50
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.parts import Correction, Forward, Loss
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Around, Average, Network, State, Totals
from fedacg.methods.visit import Assignment, Departure


class PrototypeContrast(Loss, Correction):
    """α_t CE + (1 − α_t) CE over ⟨f, c_k/‖c_k‖⟩; adds no term to g, but sees by `correct` that a step is done."""

    needs = frozenset({"stages"})

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def begin(self, assignment: Assignment) -> None:
        self._alpha = min(1.0, assignment.round.number / self.rounds)
        self._prototypes = assignment.broadcast["prototypes"].view(len(assignment.label_counts()), -1)
        self._known = self._prototypes.any(dim=1)
        self._centres = normalize(self._prototypes, dim=1).T
        examples = int(assignment.label_counts().sum())
        assert isinstance(assignment.steps, int)
        self._early = assignment.steps - -(-examples // assignment.local.batch)  # steps before the last epoch
        self._sums = torch.zeros_like(self._prototypes)
        self._counts = self._sums.new_zeros(len(self._sums))
        self._batch: tuple[Tensor, Tensor] | None = None

    def __call__(self, forward: Forward) -> Tensor:
        y = forward.y
        if self._batch is None:  # of the gradients of a step, the first is the one at w
            self._batch = forward.features.detach(), y
        plain = cross_entropy(forward.logits, y, reduction="none")
        scores = (forward.features @ self._centres).masked_fill(~self._known, -torch.inf)
        known = self._known[y]
        safe = torch.where(known.unsqueeze(1), scores, 0.0)
        contrast = cross_entropy(safe, y, reduction="none")
        return torch.where(known, self._alpha * plain + (1 - self._alpha) * contrast, plain).mean()

    def correct(self, g: Tensor, w: Tensor) -> None:
        assert self._batch is not None
        if self._early <= 0:
            features, y = self._batch
            self._sums.index_add_(0, y, features)
            self._counts.index_add_(0, y, torch.ones_like(y, dtype=self._counts.dtype))
        self._early -= 1
        self._batch = None

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.attach("sums", self._sums)
        departure.attach("counts", self._counts)


class Prototypes(Around):
    """c_k ← Σ sums/Σ counts; a class without an example keeps its own"""

    def extras(self, network: Network, like: Tensor) -> State:
        prototypes = like.new_zeros(network.classes * network.width)
        return {**super().extras(network, like), "prototypes": prototypes}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {**super().broadcast(state, round), "prototypes": state["prototypes"]}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        extras = reply.extras
        return {**super().collect(reply), "sums": (extras["sums"], 1.0), "counts": (extras["counts"], 1.0)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        counts = totals["counts"].unsqueeze(1)
        sums = totals["sums"].view(len(counts), -1)
        old = state["prototypes"].view(len(counts), -1)
        found = torch.where(counts > 0, sums / counts.clamp(min=1), old)
        return {**super().step(state, totals, round), "prototypes": found.view(-1)}


def fedproc(rounds: float, server_lr: float) -> Method:
    return Method(Prototypes(Average(server_lr)), objective=(PrototypeContrast(int(rounds)),))
