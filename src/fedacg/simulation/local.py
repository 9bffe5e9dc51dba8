"""One client's K local steps on a flat model: g ← 0, backward, corrections, clip, w ← w − η(g + decay·w).

Knows the flat vector, a client's examples and an objective. What a method's objective is made of lives in
methods/, the same steps for many clients at once in fused.py, where the result goes in engines/.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from fedacg.config.sections import LocalSettings
from fedacg.core.devices import wide
from fedacg.core.randomness import generator
from fedacg.core.vector import FlatModel
from fedacg.data.examples import Examples, Pipeline, fetch
from fedacg.methods.objective import Correction, Forward, Loss


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
    augment = visit.random("augment")
    found: list[Tensor] = []
    counts: list[int] = []
    for epoch, index in _batches(len(examples), settings.batch, visit.steps, visit.random("shuffle")):
        x, y = fetch(examples, index, w.device)
        forward = Forward(flat.module, flat.prepare(pipeline(x, augment)), y)
        g.zero_()
        with forwarding(settings.precision, w.device):
            loss = sum_losses(losses, forward)
        torch.autograd.backward(loss)
        with torch.no_grad():
            step = direction(g, w, velocity, corrections, settings)
            w.add_(step, alpha=-settings.lr_at(visit.round, epoch))
        found.append(loss.detach())
        counts.append(len(y))
    # Read only now: an accelerator need not wait for the host after every step.
    return sum(loss * count for loss, count in zip(_read(found), counts, strict=True)) / sum(counts)


def _read(scalars: Sequence[Tensor]) -> list[float]:
    values: list[float] = torch.stack(list(scalars)).cpu().tolist()
    return values


def forwarding(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The precision of the forward pass."""
    if precision == "full":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def sum_losses(losses: Sequence[Loss], forward: Forward) -> Tensor:
    """The scalar that autograd differentiates: the sum of the objective's losses on one batch."""
    total = losses[0](forward)
    for loss in losses[1:]:
        total = total + loss(forward)
    return total


def direction(
    g: Tensor, w: Tensor, velocity: Tensor | None, corrections: Sequence[Correction], settings: LocalSettings
) -> Tensor:
    """g with corrections, clipped, with weight decay and momentum: what a step goes against, for every row."""
    for correction in corrections:
        correction.correct(g, w)
    if settings.clip:
        clip(g, settings.clip)
    if settings.weight_decay:
        g.add_(w, alpha=settings.weight_decay)
    return g if velocity is None else velocity.mul_(settings.momentum).add_(g)


def clip(g: Tensor, largest: float) -> None:
    """g ← g·min(1, c/(‖g‖ + 10⁻⁶)), as `torch.nn.utils.clip_grad_norm_` does; each row by its own norm."""
    scale = largest / (torch.linalg.vector_norm(g, dim=-1, keepdim=True).to(wide(g)) + 1e-6)
    if bool((scale < 1).any()):
        g.mul_(scale.clamp_(max=1).to(g.dtype))


def orders(examples: int, batch: int, steps: int, shuffle: torch.Generator) -> Iterator[Tensor]:
    """A new order of the examples for every epoch; the last one ends where K steps are done."""
    left = steps
    while left > 0:
        order = torch.randperm(examples, generator=shuffle)[: left * batch]
        yield order
        left -= -(-len(order) // batch)


def _batches(examples: int, batch: int, steps: int, shuffle: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """(epoch, positions) of each step."""
    for epoch, order in enumerate(orders(examples, batch, steps, shuffle)):
        for index in torch.split(order, batch):
            yield epoch, index
