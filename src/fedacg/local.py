"""One client's K local steps on a flat model: g ← 0, backward, corrections, clip, w ← w − η(g + decay·w).

Knows the flat vector, a client's examples and an objective. What a method's objective is made of lives in
methods/, where the result goes in engines/.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from fedacg.data.examples import Examples, Pipeline
from fedacg.methods.objective import Correction, Forward, Loss
from fedacg.randomness import generator
from fedacg.settings import Section
from fedacg.vector import FlatModel


class LocalSettings(Section):
    """How a client trains: plain SGD unless told otherwise."""

    epochs: int = Field(5, ge=1)
    """Passes over the client's examples, unless `steps` is set."""
    steps: int = Field(0, ge=0)
    """A fixed number of steps in place of epochs; 0 goes by epochs."""
    batch: int = Field(50, ge=1)
    """Examples a step; the last, smaller batch of an epoch is kept."""
    lr: float = Field(0.1, gt=0)
    lr_decay: float = Field(1.0, gt=0, le=1)
    """Factor a round: η_t = η₀·d^(t−1) in round t = 1, 2, …"""
    epoch_decay: bool = False
    """Decay once more in every local epoch, as the FedACG authors' code does."""
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of the local SGD; its buffer starts at zero in every round."""
    clip: float = Field(0.0, ge=0)
    """Largest norm of the whole gradient, corrections included; 0 never clips."""

    def lr_at(self, round: int) -> float:
        """The learning rate at the start of a round."""
        return self.lr * self.lr_decay ** (round - 1)

    def steps_for(self, examples: int) -> int:
        """K, the number of local steps of a client with this many examples."""
        return self.steps or self.epochs * -(-examples // self.batch)


@dataclass(frozen=True)
class Visit:
    """One client's part in one round: who, when, how many steps, and with which seed."""

    seed: int
    round: int
    client: int
    steps: int
    """K"""

    def random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, purpose, self.round, self.client)


def train(
    flat: FlatModel,
    examples: Examples,
    pipeline: Pipeline,
    losses: Sequence[Loss],
    corrections: Sequence[Correction],
    settings: LocalSettings,
    visit: Visit,
) -> float:
    """Take a client's K steps on `flat`, in place; return the mean loss over the examples seen."""
    w, g = flat.w, flat.g
    velocity = torch.zeros_like(w) if settings.momentum else None
    lr = settings.lr_at(visit.round)
    augment = visit.random("augment")
    total, seen = 0.0, 0
    for epoch, index in _batches(len(examples), settings.batch, visit.steps, visit.random("shuffle")):
        x, y = examples.fetch(index)
        forward = Forward(flat.module, flat.prepare(pipeline(x, augment)), y)
        g.zero_()
        loss = sum_losses(losses, forward)
        torch.autograd.backward(loss)
        with torch.no_grad():
            for correction in corrections:
                correction.correct(g, w)
            if settings.clip:
                clip(g, settings.clip)
            if settings.weight_decay:
                g.add_(w, alpha=settings.weight_decay)
            step = g if velocity is None else velocity.mul_(settings.momentum).add_(g)
            w.add_(step, alpha=-(lr * settings.lr_decay**epoch if settings.epoch_decay else lr))
        total += float(loss.detach()) * len(y)
        seen += len(y)
    return total / seen


def sum_losses(losses: Sequence[Loss], forward: Forward) -> Tensor:
    """The scalar that autograd differentiates: the sum of the objective's losses on one batch."""
    total = losses[0](forward)
    for loss in losses[1:]:
        total = total + loss(forward)
    return total


def clip(g: Tensor, largest: float) -> None:
    """g ← g·min(1, c/(‖g‖ + 10⁻⁶)), as `torch.nn.utils.clip_grad_norm_` does."""
    scale = largest / (float(torch.linalg.vector_norm(g)) + 1e-6)
    if scale < 1:
        g.mul_(scale)


def _batches(examples: int, batch: int, steps: int, shuffle: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """(epoch, positions) of each step: a new order in every epoch, until K steps are done."""
    left = steps
    epoch = 0
    while left:
        for index in torch.split(torch.randperm(examples, generator=shuffle), batch)[:left]:
            yield epoch, index
            left -= 1
        epoch += 1
