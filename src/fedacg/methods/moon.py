"""MOON: a contrastive loss draws features towards the broadcast model's, away from the client's last model's.

    client   minimise CE + μ·(−log[e^{s(z,z_g)/T} / (e^{s(z,z_g)/T} + e^{s(z,z_p)/T})]),  s = cosine
             z, z_g, z_p: features of w, of φ and of the w_i that the client kept
    server   θ ← θ + η_g Σ ω_i Δ_i

The features are the head's inputs, in all three models. A client that takes part for the first time has
z_p = z_g, and the term has no gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, softplus

from fedacg.core.round import Message
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Forward, Loss
from fedacg.methods.rules import Average
from fedacg.methods.visit import Assignment
from fedacg.models.networks import StagedModel


class Contrastive(Loss):
    """−μ log[e^{s_g/T} / (e^{s_g/T} + e^{s_p/T})] = μ log(1 + e^{(s_p − s_g)/T}), mean over the batch."""

    needs = frozenset({"stages"})

    def __init__(self, mu: float, temperature: float) -> None:
        self.mu, self.temperature = mu, temperature

    def begin(self, assignment: Assignment) -> None:
        self._flat = assignment.flat
        buffers = assignment.broadcast["buffers"]
        self._global = assignment.copies.load("phi", assignment.phi, buffers)
        self._previous: nn.Module | None = None
        if "w" in assignment.kept:
            self._previous = assignment.copies.load("previous", assignment.kept["w"], assignment.kept["buffers"])

    def __call__(self, forward: Forward) -> Tensor:
        z_g = _features(self._global, forward.only)
        z_p = z_g if self._previous is None else _features(self._previous, forward.only)
        s_g, s_p = (cosine_similarity(forward.features, z) for z in (z_g, z_p))
        return self.mu * softplus((s_p - s_g) / self.temperature).mean()

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"w": self._flat.w, "buffers": self._flat.read_buffers()}


@torch.no_grad()
def _features(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, StagedModel)
    return module.features(x)


def moon(mu: float, temperature: float, server_lr: float) -> Method:
    return Method(Average(server_lr), objective=(Empirical(), Contrastive(mu, temperature)))
