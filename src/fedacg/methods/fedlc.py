"""FedLC: logits are calibrated by how often the client has seen each class.

    client   minimise CE on z_c − τ·n_{i,c}^{−1/4}
    server   θ ← θ + η_g Σ ω_i Δ_i

A class that the client has no example of is left out of its softmax.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from fedacg.methods.method import Method
from fedacg.methods.parts import Forward, ForwardRows, Loss
from fedacg.methods.rules import Average
from fedacg.methods.visit import Assignment


class Calibrated(Loss):
    """CE on z_c − τ·n_{i,c}^{−1/4}, over the classes with n_{i,c} > 0"""

    fuses = True

    def __init__(self, tau: float) -> None:
        self.tau = tau

    def begin(self, assignment: Assignment) -> None:
        counts = assignment.label_counts().to(assignment.phi.dtype)
        margin = -self.tau * counts.pow(-0.25)
        self._shift = torch.where(counts > 0, margin, -torch.inf)

    def __call__(self, forward: Forward) -> Tensor:
        return cross_entropy(forward.logits + self._shift_for(forward.logits.shape[1]), forward.y)

    def of_rows(self, forward: ForwardRows) -> Tensor:
        rows, _, outputs = forward.logits.shape
        return forward.cross_entropy(forward.logits + self._shift_for(outputs)[:rows].unsqueeze(1))

    def _shift_for(self, outputs: int) -> Tensor:
        # A network may have outputs without any label in the federation; they are absent classes too.
        return pad(self._shift, (0, outputs - self._shift.shape[-1]), value=-torch.inf)


def fedlc(tau: float, server_lr: float) -> Method:
    return Method(Average(server_lr), objective=(Calibrated(tau),))
