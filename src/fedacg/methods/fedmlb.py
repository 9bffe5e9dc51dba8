"""FedMLB: local stages must also serve the broadcast model's own later stages.

    client   minimise CE(z) + λ₁·mean_l CE(z_l) + λ₂·mean_l KL(softmax(z_l/T) ‖ softmax(z/T))
             z_l: local stages 0..l, then the frozen stages l+1.. and head of φ, for every stage l
    server   θ ← θ + η_g Σ ω_i Δ_i

φ's stages are frozen, but gradients pass through them into the local ones.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Forward, Loss
from fedacg.methods.rules import Average
from fedacg.methods.visit import Assignment
from fedacg.models.networks import StagedModel


class Branches(Loss):
    """λ₁·mean_l CE(z_l) + λ₂·mean_l KL(softmax(z_l/T) ‖ softmax(z/T))"""

    needs = frozenset({"stages"})

    def __init__(self, lam1: float, lam2: float, temperature: float) -> None:
        self.lam1, self.lam2, self.temperature = lam1, lam2, temperature

    def begin(self, assignment: Assignment) -> None:
        frozen = assignment.copies.load("phi", assignment.phi, assignment.broadcast["buffers"])
        assert isinstance(frozen, StagedModel)
        self._frozen = frozen

    def __call__(self, forward: Forward) -> Tensor:
        local = log_softmax(forward.logits / self.temperature, dim=1)
        hybrid_loss, divergence = [], []
        for stage, output in enumerate(forward.stage_outputs):
            z = self._frozen.branch(output, stage + 1)
            hybrid = log_softmax(z / self.temperature, dim=1)
            hybrid_loss.append(cross_entropy(z, forward.y))
            divergence.append(kl_div(local, hybrid, reduction="batchmean", log_target=True))
        return self.lam1 * torch.stack(hybrid_loss).mean() + self.lam2 * torch.stack(divergence).mean()


def fedmlb(lam1: float, lam2: float, temperature: float, server_lr: float) -> Method:
    return Method(Average(server_lr), objective=(Empirical(), Branches(lam1, lam2, temperature)))
