"""Validation data: a part of the training data, or of the test set, that is held out for choosing.

What is held out follows from the seed and, where every client gives some, from the client's number, so it is
the same wherever and whenever a client is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacg.config.sections import DataSettings
from fedacg.core.randomness import numpy_generator
from fedacg.data.examples import Clients, Examples, FederatedData, SpanExamples, ViewExamples
from fedacg.data.rearranged import JoinedExamples
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

    def held(self, client: int) -> NDArray[np.int64]:
        """The positions among a client's examples that are held out."""
        whole = self.base.size(client)
        count = _count(whole, self.fraction)
        return np.sort(numpy_generator(self.seed, "validation", client).choice(whole, size=count, replace=False))


@dataclass(frozen=True)
class ChosenClients:
    """A selection of other clients, renumbered."""

    base: Clients
    chosen: Tensor

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, client: int, /) -> Examples:
        return self.base[int(self.chosen[client])]

    def size(self, client: int) -> int:
        return self.base.size(int(self.chosen[client]))


def select(examples: Examples, index: Tensor) -> Examples:
    """A selection of the examples, as a view of their base."""
    if isinstance(examples, ViewExamples):
        return ViewExamples(examples.base, examples.index[index])
    if isinstance(examples, SpanExamples):
        return ViewExamples(examples.base, index + examples.first)
    return ViewExamples(examples, index)


def draw(examples: Examples, count: int, rng: np.random.Generator) -> Examples:
    """At most `count` of the examples; 0 takes all."""
    if not 0 < count < len(examples):
        return examples
    drawn = rng.choice(len(examples), size=count, replace=False)
    return ViewExamples(examples, torch.from_numpy(drawn).sort().values)


def hold_out(data: FederatedData, settings: DataSettings, seed: int) -> FederatedData:
    """The data with the requested validation set, removed from where it was held out."""
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
        left = torch.from_numpy(rest)
        return replace(
            data,
            clients=ChosenClients(data.clients, left),
            validation=held,
            names=tuple(data.names[client] for client in rest) if data.names else (),
            own_tests=ChosenClients(data.own_tests, left) if data.own_tests else None,
        )
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
    """The number of a client's examples that is held out: the nearest that leaves it one."""
    return min(int(fraction * whole + 0.5), max(whole - 1, 0))


def _drawn(whole: int, fraction: float, seed: int, why: str) -> NDArray[np.int64]:
    count = int(fraction * whole + 0.5)
    if not 0 < count < whole:
        raise _too_small(fraction, f"{why} ({whole})")
    return np.sort(numpy_generator(seed, "validation").choice(whole, size=count, replace=False))


def _too_small(fraction: float, why: str) -> SettingError:
    return SettingError("data.validation", f"{fraction:g}", why)
