"""Validation data: a part that is held out of the training data, or of the test set, to choose by.

What is held out follows from the seed and, where every client gives some, from the client's number, so it is
the same wherever and whenever a client is made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacg.config.sections import DataSettings
from fedacg.core.randomness import numpy_generator
from fedacg.data.examples import Clients, Examples, FederatedData, SpanExamples, ViewExamples, labels
from fedacg.errors import SettingError


@dataclass(frozen=True)
class RemainingClients:
    """Clients without the part of their examples that is held out."""

    base: Clients
    fraction: float
    seed: int

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, client: int, /) -> Examples:
        whole, held = self.base[client], self.held(client)
        kept = np.setdiff1d(np.arange(len(whole)), held, assume_unique=True)
        return select(whole, torch.from_numpy(kept))

    def size(self, client: int) -> int:
        whole = self.base.size(client)
        return whole - _count(whole, self.fraction)

    def moved(self, move: Callable[[Clients], Clients]) -> "RemainingClients":
        """The same on another device."""
        return replace(self, base=move(self.base))

    def held(self, client: int) -> NDArray[np.int64]:
        """The positions among a client's examples that are held out."""
        whole = self.base.size(client)
        count = _count(whole, self.fraction)
        return np.sort(numpy_generator(self.seed, "validation", client).choice(whole, size=count, replace=False))


@dataclass(frozen=True)
class ChosenClients:
    """Some of other clients, numbered anew."""

    base: Clients
    chosen: Tensor

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, client: int, /) -> Examples:
        return self.base[int(self.chosen[client])]

    def size(self, client: int) -> int:
        return self.base.size(int(self.chosen[client]))

    def moved(self, move: Callable[[Clients], Clients]) -> "ChosenClients":
        """The same on another device."""
        return replace(self, base=move(self.base))


@dataclass(frozen=True)
class JoinedExamples:
    """The examples of several, one after the other."""

    parts: Sequence[Examples]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        order, pieces = self._pieces(index)
        fetched = [part.fetch(places) for part, places in pieces]
        x, y = torch.cat([x for x, _ in fetched]), torch.cat([y for _, y in fetched])
        return x[order], y[order]

    def labels(self, index: Tensor) -> Tensor:
        order, pieces = self._pieces(index)
        return torch.cat([labels(part, places) for part, places in pieces])[order]

    def moved(self, move: Callable[[Examples], Examples]) -> "JoinedExamples":
        """The same on another device."""
        return JoinedExamples([move(part) for part in self.parts])

    def _pieces(self, index: Tensor) -> tuple[Tensor, list[tuple[Examples, Tensor]]]:
        """What to take of which part, and how that is put back into the order of the index."""
        ends = torch.tensor([len(part) for part in self.parts]).cumsum(0)
        owner = torch.searchsorted(ends, index, right=True)
        taken = owner.argsort(stable=True)
        found = []
        for number in sorted(set(owner.tolist())):
            part = self.parts[number]
            found.append((part, index[owner == number] - (ends[number] - len(part))))
        return taken.argsort(), found


def select(examples: Examples, index: Tensor) -> Examples:
    """Some of the examples, as a view on what they are a view on themselves."""
    if isinstance(examples, ViewExamples):
        return ViewExamples(examples.base, examples.index[index])
    if isinstance(examples, SpanExamples):
        return ViewExamples(examples.base, index + examples.first)
    return ViewExamples(examples, index)


def draw(examples: Examples, count: int, rng: np.random.Generator) -> Examples:
    """At most so many of the examples; 0 is all."""
    if not 0 < count < len(examples):
        return examples
    drawn = rng.choice(len(examples), size=count, replace=False)
    return ViewExamples(examples, torch.from_numpy(drawn).sort().values)


def hold_out(data: FederatedData, settings: DataSettings, seed: int) -> FederatedData:
    """The data with the validation set that the settings ask for, and without it elsewhere."""
    fraction = settings.validation
    if not fraction:
        return data
    if settings.validation_from == "test":
        drawn = _drawn(len(data.test), fraction, seed, "the test set has too few examples")
        rest = np.setdiff1d(np.arange(len(data.test)), drawn, assume_unique=True)
        held, test = (select(data.test, torch.from_numpy(places)) for places in (drawn, rest))
        return replace(data, test=test, validation=held)
    if settings.validation_from == "clients":
        count = len(data.clients)
        drawn = _drawn(count, fraction, seed, "there are too few clients")
        rest = np.setdiff1d(np.arange(count), drawn, assume_unique=True)
        held = _join([data.clients[client] for client in drawn.tolist()])
        return replace(data, clients=ChosenClients(data.clients, torch.from_numpy(rest)), validation=held)
    remaining = RemainingClients(data.clients, fraction, seed)
    parts = [
        select(data.clients[client], torch.from_numpy(places))
        for client in range(len(data.clients))
        if len(places := remaining.held(client))
    ]
    if not parts:
        raise _too_small(fraction, "no client has enough examples to give one")
    return replace(data, clients=remaining, validation=_join(parts))


def _join(parts: Sequence[Examples]) -> Examples:
    views = [select(part, torch.arange(len(part))) for part in parts]
    first = views[0]
    if isinstance(first, ViewExamples) and all(
        isinstance(v, ViewExamples) and v.base is first.base for v in views
    ):
        return ViewExamples(
            first.base, torch.cat([view.index for view in views if isinstance(view, ViewExamples)])
        )
    return JoinedExamples(list(parts))


def _count(whole: int, fraction: float) -> int:
    """How many of a client's examples are held out: the nearest number that leaves it one."""
    return min(int(fraction * whole + 0.5), max(whole - 1, 0))


def _drawn(whole: int, fraction: float, seed: int, why: str) -> NDArray[np.int64]:
    count = int(fraction * whole + 0.5)
    if not 0 < count < whole:
        raise _too_small(fraction, f"{why} ({whole})")
    return np.sort(numpy_generator(seed, "validation").choice(whole, size=count, replace=False))


def _too_small(fraction: float, why: str) -> SettingError:
    return SettingError("data.validation", f"{fraction:g}", why)
