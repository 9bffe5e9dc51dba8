"""Local optimisers on the flat vector: from a gradient, corrected and clipped, to what a step goes against.

They work on one client's vectors and on the rows of many alike. Their state starts at zero in every visit, so
clients keep nothing of it.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedacg.config.sections import LocalSettings


class Optimiser(ABC):
    """w ← w − η·direction(g, w)"""

    @abstractmethod
    def direction(self, g: Tensor, w: Tensor) -> Tensor:
        """What the next step goes against; g is overwritten."""


class SGD(Optimiser):
    """g + decay·w, with momentum v ← μv + g, and Nesterov's g + μv if asked."""

    def __init__(self, settings: LocalSettings, w: Tensor) -> None:
        self._decay, self._momentum, self._nesterov = settings.weight_decay, settings.momentum, settings.nesterov
        self._velocity = torch.zeros_like(w) if settings.momentum else None

    def direction(self, g: Tensor, w: Tensor) -> Tensor:
        if self._decay:
            g.add_(w, alpha=self._decay)
        if self._velocity is None:
            return g
        velocity = self._velocity[: len(w)].mul_(self._momentum).add_(g)
        return g.add_(velocity, alpha=self._momentum) if self._nesterov else velocity


class Adam(Optimiser):
    """m̂/(√v̂ + ε) with bias correction; the decay joins g (Adam) or the direction (AdamW)."""

    def __init__(self, settings: LocalSettings, w: Tensor) -> None:
        self._settings, self._decoupled = settings, settings.optimiser == "adamw"
        self._m, self._v, self._denominator = torch.zeros_like(w), torch.zeros_like(w), torch.empty_like(w)
        self._steps = 0

    def direction(self, g: Tensor, w: Tensor) -> Tensor:
        rows, beta1, beta2 = slice(len(w)), self._settings.beta1, self._settings.beta2
        self._steps += 1
        decay = self._settings.weight_decay
        if decay and not self._decoupled:
            g.add_(w, alpha=decay)
        m, v = self._m[rows].lerp_(g, 1 - beta1), self._v[rows].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        denominator = torch.sqrt(v, out=self._denominator[rows]).div_((1 - beta2**self._steps) ** 0.5)
        direction = torch.div(m, denominator.add_(self._settings.epsilon), out=g).div_(1 - beta1**self._steps)
        return direction.add_(w, alpha=decay) if decay and self._decoupled else direction


def make_optimiser(settings: LocalSettings, w: Tensor) -> Optimiser:
    """The optimiser that settings describe, for vectors or rows like w."""
    return SGD(settings, w) if settings.optimiser == "sgd" else Adam(settings, w)
