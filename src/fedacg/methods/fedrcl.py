"""FedRCL: a contrastive loss on every stage's features that keeps the samples of a class from collapsing.

    client   minimise CE + μ·mean_l mean_i L_{l,i}, over the stages l and the samples i of a batch
             L = −log[e^{p/τ} / (e^{p/τ} + e^{n₁/τ} + e^{n₂/τ})] + β·[q ≥ λ]·(−log[e^{1/τ} / (e^{1/τ} + e^{q/τ})])
             p = q: the cosine with the least similar other sample of the class;  n₁, n₂: the two most similar of
             other classes
    server   θ ← θ + η_g Σ ω_i Δ_i

Features are a stage's output before its last activation, averaged over positions or steps if there are
several. A sample alone in its class has no term, and neither has a batch of one class; mean_i is over the samples
that have one. Where a batch has a single sample of other classes there is no n₂. These are the hardest pairs that
the authors' code takes; their paper's text sums over all.

Seo, Kim, Kim, Han, "Relaxed contrastive learning for federated learning", CVPR 2024,
https://arxiv.org/abs/2401.04928

    fedacg run quickstart --method fedrcl+acg
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus
from torch.utils.hooks import RemovableHandle

from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Forward, Loss
from fedacg.methods.rules import Average
from fedacg.methods.visit import Assignment, Departure
from fedacg.models.networks import StagedModel

_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid)


class RelaxedContrast(Loss):
    """μ·mean_l mean_i L_{l,i}"""

    needs = frozenset({"stages"})

    def __init__(self, mu: float, temperature: float, lam: float, beta: float) -> None:
        self.mu, self.temperature, self.lam, self.beta = mu, temperature, lam, beta
        self._hooks: list[RemovableHandle] = []
        self._before: dict[int, Tensor] = {}

    def begin(self, assignment: Assignment) -> None:
        self._let_go()
        model = assignment.flat.module
        assert isinstance(model, StagedModel)
        for number, stage in enumerate(model.stages):
            activations = [module for module in stage.modules() if isinstance(module, _ACTIVATIONS)]
            if activations:
                self._hooks.append(activations[-1].register_forward_pre_hook(self._watch(number)))

    def _watch(self, number: int) -> "_Watch":
        return _Watch(self._before, number)

    def __call__(self, forward: Forward) -> Tensor:
        outputs = forward.stage_outputs
        levels = [self._before.pop(number, output) for number, output in enumerate(outputs)]
        terms = [self.contrast(_pooled(level), forward.y) for level in levels]
        return self.mu * torch.stack(terms).mean()

    def contrast(self, z: Tensor, y: Tensor) -> Tensor:
        """mean_i L_i of one level's features; zero where no sample has a term."""
        z = normalize(z, dim=1)
        similar = z @ z.T
        same = y.unsqueeze(0) == y.unsqueeze(1)
        others = same & ~torch.eye(len(y), dtype=torch.bool, device=y.device)
        counted = others.any(dim=1) & ~same.all(dim=1)
        if not bool(counted.any()):
            return z.new_zeros(())
        least = similar.masked_fill(~others, torch.inf).amin(dim=1)[counted]
        hardest = similar.masked_fill(same, -torch.inf)[counted].topk(min(2, len(y) - 1), dim=1).values
        logits = torch.cat([least.unsqueeze(1), hardest], dim=1) / self.temperature
        apart = torch.logsumexp(logits, dim=1) - logits[:, 0]
        relaxed = torch.where(least >= self.lam, softplus((least - 1) / self.temperature), 0.0)
        return (apart + self.beta * relaxed).mean()

    def end(self, delta: Tensor, departure: Departure) -> None:
        self._let_go()

    def _let_go(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._before.clear()


class _Watch:
    """Stores the input of a stage's last activation; a copy, as it may be overwritten in place."""

    def __init__(self, before: dict[int, Tensor], number: int) -> None:
        self._before, self._number = before, number

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._before[self._number] = inputs[0].clone()


def _pooled(level: Tensor) -> Tensor:
    """(B, d): images are averaged over positions, sequences over steps."""
    if level.dim() == 4:
        return level.mean(dim=(2, 3))
    return level.mean(dim=1) if level.dim() == 3 else level.flatten(start_dim=1)


def fedrcl(mu: float, temperature: float, lam: float, beta: float, server_lr: float) -> Method:
    return Method(Average(server_lr), objective=(Empirical(), RelaxedContrast(mu, temperature, lam, beta)))
