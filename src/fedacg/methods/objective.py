"""What a client minimises, in two kinds of part that add up: losses for autograd, corrections of g.

A part lives in a worker and is told of each client it serves by `begin`. Corrections are vector algebra on
the flat gradient, never built through autograd. Server rules live in rules.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""From the model's outputs and the labels to the mean loss of a batch."""


@dataclass(frozen=True)
class Assignment:
    """What a part may know of the client it is about to serve."""

    phi: Tensor
    """φ, the point that was broadcast; the client's vector w starts there."""
    lr: float
    """η of this round."""
    steps: int
    """K of this client."""


class Forward:
    """One batch on its way through the model; what several losses need is computed once."""

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        self.module, self.x, self.y = module, x, y

    @cached_property
    def logits(self) -> Tensor:
        output: Tensor = self.module(self.x)
        return output


class Part(ABC):  # noqa: B024 - the two kinds below are abstract
    """A piece of a client's objective."""

    def begin(self, assignment: Assignment) -> None:  # noqa: B027 - most parts need no preparation
        """A client is about to take its local steps."""


class Loss(Part):
    """A scalar on a batch, differentiated by autograd."""

    @abstractmethod
    def __call__(self, forward: Forward) -> Tensor: ...


class Correction(Part):
    """A term of the gradient that is added to the flat vector directly."""

    @abstractmethod
    def correct(self, g: Tensor, w: Tensor) -> None:
        """Add the term to g in place, at the point w."""


class Empirical(Loss):
    """ℓ_i, the client's own loss on its data: cross-entropy unless the user brings another."""

    def __init__(self, function: LossFunction = torch.nn.functional.cross_entropy) -> None:
        self.function = function

    def __call__(self, forward: Forward) -> Tensor:
        return self.function(forward.logits, forward.y)


class Proximal(Correction):
    """The pull μ/2 ‖w − φ‖², whose gradient is μ(w − φ)."""

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def begin(self, assignment: Assignment) -> None:
        self._phi = assignment.phi
        self._pull = torch.empty_like(assignment.phi)

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.add_(torch.sub(w, self._phi, out=self._pull), alpha=self.mu)
