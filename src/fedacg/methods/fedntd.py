"""FedNTD: distillation preserves what the broadcast model knows about the not-true classes.

    client   minimise (1−β)·CE + β·KL(softmax(z_g^{≠y}/T) ‖ softmax(z^{≠y}/T)) over the not-true classes
    server   θ ← θ + η_g Σ ω_i Δ_i

z_g are the logits of φ, without gradient; both softmaxes leave out the label's logit.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from fedacg.methods.method import Method
from fedacg.methods.parts import Forward, ForwardRows, Loss
from fedacg.methods.rules import Average
from fedacg.methods.visit import Assignment


class NotTrueDistillation(Loss):
    """(1−β)·CE + β·KL(softmax(z_g^{≠y}/T) ‖ softmax(z^{≠y}/T)), mean over the batch"""

    fuses = True

    def __init__(self, beta: float, temperature: float) -> None:
        self.beta, self.temperature = beta, temperature

    def begin(self, assignment: Assignment) -> None:
        self._teacher = assignment.copies.load("phi", assignment.phi, assignment.broadcast["buffers"])

    def __call__(self, forward: Forward) -> Tensor:
        with torch.no_grad():
            teacher = self._log_not_true(forward.outputs_of(self._teacher), forward.y)
        student = self._log_not_true(forward.logits, forward.y)
        distilled = kl_div(student, teacher, reduction="batchmean", log_target=True)
        return (1 - self.beta) * cross_entropy(forward.logits, forward.y) + self.beta * distilled

    def of_rows(self, forward: ForwardRows) -> Tensor:
        with torch.no_grad():
            teacher = self._log_not_true(forward.outputs_of(self._teacher), forward.y)
        student = self._log_not_true(forward.logits, forward.y)
        each = kl_div(student, teacher, reduction="none", log_target=True).sum(dim=-1)
        distilled = forward.mean(each.where(forward.counts, 0))
        return (1 - self.beta) * forward.cross_entropy(forward.logits) + self.beta * distilled

    def _log_not_true(self, logits: Tensor, y: Tensor) -> Tensor:
        """The log-softmax over the classes other than the label."""
        others = torch.arange(logits.shape[-1] - 1, device=y.device)
        index = others + (others >= y.unsqueeze(-1))
        return log_softmax(logits.gather(-1, index) / self.temperature, dim=-1)


def fedntd(beta: float, temperature: float, server_lr: float) -> Method:
    return Method(Average(server_lr), objective=(NotTrueDistillation(beta, temperature),))
