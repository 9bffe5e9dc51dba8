"""One client's K local steps on a flat model: gradient, corrections, clip, w ← w − η·direction.

The direction is that of a local optimiser on the flat vector: SGD, Adam or AdamW. The same steps
for many clients at once are in fused.py; what happens before and after them in worker.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from fedacg.config.sections import LocalSettings
from fedacg.core.tensors import Inputs, draws_of_layers, set_draws_of_layers
from fedacg.core.vector import FlatModel, clip
from fedacg.data.examples import Examples, Pipeline, feed, fetch
from fedacg.methods.method import Method
from fedacg.methods.parts import Correction, Forward, LocalStep, Loss, Offset, Start


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
    """The optimiser for these settings, for vectors or rows like w."""
    return SGD(settings, w) if settings.optimiser == "sgd" else Adam(settings, w)


Streams = Callable[[str], torch.Generator]
"""A visit's streams of randomness by purpose."""


def train(
    flat: FlatModel,
    examples: Examples,
    pipeline: Pipeline,
    method: Method,
    settings: LocalSettings,
    rates: Sequence[float],
    random: Streams,
) -> float:
    """Take a client's steps on `flat`, one for each rate, in place; return the mean loss over the examples."""
    w = flat.w
    optimiser = make_optimiser(settings, w)
    gradient = _Gradient(flat, method, settings)
    augment = random("augment")
    found: list[Tensor] = []
    counts: list[int] = []
    batches = _batches(len(examples), settings.batch, len(rates), random("shuffle"))
    for rate, index in zip(rates, batches, strict=True):
        x, y = fetch(examples, index, w.device)
        gradient.take(feed(flat, pipeline, x, augment), y)
        g = method.step.direction(gradient, w)
        with torch.no_grad():
            correct(g, w, gradient.missing, settings)
            w.add_(optimiser.direction(g, w), alpha=-rate)
        found.append(gradient.loss)
        counts.append(len(y))
    # Read only now: an accelerator need not wait for the host after every step.
    return sum(loss * count for loss, count in zip(_read(found), counts, strict=True)) / sum(counts)


def _read(scalars: Sequence[Tensor]) -> list[float]:
    values: list[float] = torch.stack(list(scalars)).cpu().tolist()
    return values


class _Gradient:
    """g of one client's losses on one batch after the other, as a `methods.parts.Gradient`."""

    def __init__(self, flat: FlatModel, method: Method, settings: LocalSettings) -> None:
        self._flat, self._losses, self._settings = flat, method.losses, settings
        self._corrections = method.corrections
        first = self._corrections[0] if self._corrections else None
        self._first = first if isinstance(first, Offset) and first.starts else None
        self._offset: Offset | None = None
        """What the present g started from."""
        self._once = type(method.step) is LocalStep

    def take(self, x: Inputs, y: Tensor) -> None:
        """Go on to the next batch."""
        self._x, self._y, self._asked, self._passed = x, y, False, False
        if not self._once:
            self._draws = draws_of_layers(self._flat.w.device)

    @property
    def missing(self) -> Sequence[Correction]:
        """The corrections that are not yet in g."""
        return self._corrections if self._offset is None else self._corrections[1:]

    # Each writes into g what the backward pass then adds to.

    def __call__(self, at: Tensor | None = None) -> Tensor:
        self._offset = None
        self._flat.place_g(at).zero_()
        return self._ask(at)

    def onto(self, start: Start, at: Tensor | None = None, *, times: float = 1.0) -> Tensor:
        self._offset, g = None, self._flat.place_g(at)
        if not isinstance(start, Tensor):
            start(g)
        elif start is not g:
            g.copy_(start)
        return self._ask(at, times)

    def last(self, at: Tensor | None = None) -> Tensor:
        self._offset, g = self._first, self._flat.place_g(at)
        if self._offset is None:
            g.zero_()
        elif (offset := self._offset.offset(self._flat.w, g)) is not g:
            g.copy_(offset)
        return self._ask(at)

    def of(self, loss: Callable[[Forward], Tensor]) -> Tensor:
        self._offset, g = None, self._flat.place_g()
        g.zero_()
        self._pass(loss, None)
        return g

    def _ask(self, at: Tensor | None, times: float = 1.0) -> Tensor:
        loss = self._pass(lambda forward: sum_losses(self._losses, forward), at, times)
        if not self._asked:
            self._asked, self.loss = True, loss
        return self._flat.g

    def _pass(self, loss: Callable[[Forward], Tensor], at: Tensor | None, times: float = 1.0) -> Tensor:
        """Add a gradient to g and return the loss; of a batch's passes only the first leaves traces."""
        if not self._passed:
            self._passed = True
            return self._differentiate(loss, at, times)
        buffers = self._flat.read_buffers()
        set_draws_of_layers(self._flat.w.device, self._draws)
        value = self._differentiate(loss, at, times)
        self._flat.write_buffers(buffers)
        return value

    def _differentiate(self, loss: Callable[[Forward], Tensor], at: Tensor | None, times: float) -> Tensor:
        flat = self._flat
        with nullcontext() if at is None or at is flat.w else flat.at(at):
            with precision(self._settings, flat.w.device):
                value = loss(Forward(flat.module, self._x, self._y))
            torch.autograd.backward(value, None if times == 1 else torch.full_like(value, times))
        return value.detach()


def full_gradient(
    flat: FlatModel, examples: Examples, pipeline: Pipeline, losses: Sequence[Loss], batch: int
) -> Tensor:
    """The gradient of the losses over all of a client's examples at `flat`'s parameters, a part at a time.

    Inputs are not augmented, and normalisation statistics stay as they were.
    """
    total, buffers = torch.zeros_like(flat.g), flat.read_buffers()
    for index in torch.split(torch.arange(len(examples)), batch):
        x, y = fetch(examples, index, flat.w.device)
        flat.g.zero_()
        torch.autograd.backward(sum_losses(losses, Forward(flat.module, feed(flat, pipeline, x), y)))
        total.add_(flat.g, alpha=len(index) / len(examples))
    flat.write_buffers(buffers)
    return total


def precision(settings: LocalSettings, device: torch.device) -> AbstractContextManager[object]:
    """The precision of the forward pass."""
    return nullcontext() if settings.precision == "full" else torch.autocast(device.type, torch.bfloat16)


def sum_losses(losses: Sequence[Loss], forward: Forward) -> Tensor:
    """The scalar that autograd differentiates: the sum of the objective's losses on one batch."""
    total = losses[0](forward)
    for loss in losses[1:]:
        total = total + loss(forward)
    return total


def correct(g: Tensor, w: Tensor, corrections: Sequence[Correction], settings: LocalSettings) -> None:
    """Let the corrections change g, and clip what they leave; each row by its own norm."""
    for correction in corrections:
        correction.correct(g, w)
    if settings.clip:
        clip(g, settings.clip)


def orders(examples: int, batch: int, steps: int, shuffle: torch.Generator) -> list[Tensor]:
    """A new order of the examples for every epoch; the last one ends where K steps are done."""
    found, left = [], steps
    while left > 0:
        order = torch.randperm(examples, generator=shuffle)
        found.append(order if left * batch >= examples else order[: left * batch])
        left -= -(-examples // batch)
    return found


def _batches(examples: int, batch: int, steps: int, shuffle: torch.Generator) -> Iterator[Tensor]:
    """The positions of each step's examples."""
    for order in orders(examples, batch, steps, shuffle):
        yield from torch.split(order, batch)
