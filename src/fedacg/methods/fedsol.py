"""FedSOL: local gradients are taken where the broadcast model's knowledge would suffer most.

    client   P(w) = KL(softmax(z_φ) ‖ softmax(z_w)), mean over the batch, z_φ the logits of φ without gradient
             ε = ρ |w − φ| ⊙ ∇P(w; B)/‖∇P(w; B)‖₂;  w ← w − η g(w + ε; B), on the same batch B
    server   θ ← θ + η_g Σ ω_i Δ_i

The absolute value and the product are entry by entry: entries that have moved further from φ are perturbed more,
and none that has not. At w = φ there is no perturbation, so a visit of one step is FedAvg's, and with ρ = 0 all
are. Two gradients per step and a forward pass of φ. The training loss that is recorded is the one at w + ε.

Lee, Jeong, Kim, Oh, Yun, "FedSOL: Stabilized orthogonal learning with proximal restrictions in federated
learning", CVPR 2024, https://arxiv.org/abs/2308.12532

    fedacg run quickstart --method fedsol+acg
"""

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fedacg.methods.method import Method
from fedacg.methods.parts import Forward, Gradient, LocalStep
from fedacg.methods.rules import Average
from fedacg.methods.visit import Assignment

_TINY = 1e-16


class ProximalAscent(LocalStep):
    """g(w + ε; B), ε along the gradient of KL(φ ‖ w)"""

    fuses = False

    def __init__(self, rho: float) -> None:
        self.rho = rho

    def begin(self, assignment: Assignment) -> None:
        self._phi, self._scratch = assignment.phi, assignment.scratch
        self._teacher = assignment.copies.load("phi", assignment.phi, assignment.broadcast["buffers"])

    def proximal(self, forward: Forward) -> Tensor:
        """P(w)"""
        with torch.no_grad():
            teacher = log_softmax(forward.outputs_of(self._teacher), dim=1)
        student = log_softmax(forward.logits, dim=1)
        return kl_div(student, teacher, reduction="batchmean", log_target=True)

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        p = gradient.of(self.proximal)
        scale = self.rho / (torch.linalg.vector_norm(p) + _TINY)
        moved = torch.sub(w, self._phi, out=self._scratch).abs_()
        return gradient.last(torch.addcmul(w, moved.mul_(p), scale, out=moved))


def fedsol(rho: float, server_lr: float) -> Method:
    return Method(Average(server_lr), step=ProximalAscent(rho))
