"""What a client minimises, in two kinds of part that add up: losses for autograd, corrections of g.

A part lives in a worker and is told of each client it serves: `begin` before its local steps, `end` after
them. Corrections are vector algebra on the flat gradient, never built through autograd. Server rules live in
rules.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedacg.core.messages import Message
from fedacg.core.vector import FlatModel
from fedacg.models.staged import StagedModel

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""From the model's outputs and the labels to the mean loss of a batch."""


class Copies(Protocol):
    """Frozen copies of the network that a worker keeps, one for each name and never one for each client."""

    def load(self, name: str, vector: Tensor, buffers: Tensor) -> nn.Module:
        """The copy of this name, now with these parameters; it takes no gradients of its own."""
        ...


@dataclass(frozen=True)
class Assignment:
    """What a part may know of the client it is about to serve."""

    flat: FlatModel
    """The worker's model, at φ before the first step."""
    broadcast: Message
    """What the server sent: `phi`, `buffers` and what the server rule adds."""
    kept: Message
    """What the client kept of its last visit; empty when it takes part for the first time."""
    lr: float
    """η of this round."""
    steps: int
    """K of this client."""
    label_counts: Callable[[], Tensor]
    """n_{i,c}: how many examples of each class the client has."""
    copies: Copies
    scratch: Tensor
    """A model-sized vector, or as many rows of it as there are clients, to write to while correcting."""

    @property
    def phi(self) -> Tensor:
        """φ, the point that was broadcast; the client's vector w starts there."""
        return self.broadcast["phi"]

    def state(self, name: str) -> Tensor:
        """A vector that the client kept, zero when it takes part for the first time."""
        return self.kept[name] if name in self.kept else torch.zeros_like(self.phi)


@dataclass(frozen=True)
class Departure:
    """What a client takes leave with: vectors to send, encoded by the link, and vectors to keep."""

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    upload: dict[str, Tensor] = field(default_factory=dict)
    keep: dict[str, Tensor] = field(default_factory=dict)

    def send(self, name: str, vector: Tensor) -> Tensor:
        """Put a vector into the upload; returns it as it will arrive."""
        self.upload[name] = self.encode(vector)
        return self.decode(self.upload[name])


class Forward:
    """One batch on its way through the model; what several losses need is computed once."""

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        self.module, self.x, self.y = module, x, y

    @cached_property
    def stage_outputs(self) -> list[Tensor]:
        """What each stage of a staged model puts out."""
        assert isinstance(self.module, StagedModel)
        return self.module.stage_outputs(self.x)

    @property
    def features(self) -> Tensor:
        """What the head of a staged model eats."""
        return self.stage_outputs[-1] if self.stage_outputs else self.x

    @cached_property
    def logits(self) -> Tensor:
        if isinstance(self.module, StagedModel) and type(self.module).forward is StagedModel.forward:
            return self.module.branch(self.features, len(self.module.stages))
        output: Tensor = self.module(self.x)
        return output


class Part(ABC):  # noqa: B024 - the two kinds below are abstract
    """A piece of a client's objective."""

    staged: ClassVar[bool] = False
    """Whether it looks inside the network, which must then be made of stages and a head."""

    @property
    def fuses(self) -> bool:
        """Whether it can serve many clients at once, as its kind says below; most cannot."""
        return False

    def begin(self, assignment: Assignment) -> None:  # noqa: B027 - most parts need no preparation
        """A client is about to take its local steps."""

    def end(self, delta: Tensor, departure: Departure) -> None:  # noqa: B027 - most parts leave nothing
        """The steps are done, Δ_i = w_i − φ; parts that change what is sent or kept do so here."""


IGNORED = -100
"""The label of examples that only fill up a batch; it is the one that cross-entropy leaves out by itself."""


class Loss(Part):
    """A scalar on a batch, differentiated by autograd.

    One that fuses is the same for all clients of a round, keeps nothing, and is a mean over the examples of a
    batch whose label is not `IGNORED`; `torch.func.vmap` can take it.
    """

    @abstractmethod
    def __call__(self, forward: Forward) -> Tensor: ...


class Correction(Part):
    """A term of the gradient that is added to the flat vector directly.

    One that fuses is the same for all clients of a round, keeps nothing, and corrects the rows of a matrix, a
    client each, as it does a single vector.
    """

    pulls: ClassVar[bool] = False
    """Whether it draws w towards φ, so that a second pull would make no sense."""

    @abstractmethod
    def correct(self, g: Tensor, w: Tensor) -> None:
        """Add the term to g in place, at the point w."""


class Empirical(Loss):
    """ℓ_i, the client's own loss on its data: cross-entropy unless the user brings another."""

    def __init__(self, function: LossFunction = torch.nn.functional.cross_entropy) -> None:
        self.function = function

    @property
    def fuses(self) -> bool:
        """Cross-entropy does; what a user's own loss makes of a label that counts for nothing is not known."""
        return self.function is torch.nn.functional.cross_entropy

    def __call__(self, forward: Forward) -> Tensor:
        return self.function(forward.logits, forward.y)


class Proximal(Correction):
    """The pull μ/2 ‖w − φ‖², whose gradient is μ(w − φ)."""

    pulls = True
    fuses = True

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def begin(self, assignment: Assignment) -> None:
        self._phi, self._scratch = assignment.phi, assignment.scratch

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.add_(torch.sub(w, self._phi, out=self._scratch[: len(w)]), alpha=self.mu)
