"""Clients' data rearranged: a part of each held out for testing or validation, or all of them in one place.

What is held out follows from the seed and, where every client gives some, from the client's number, so it is
the same wherever and whenever a client is made.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacg.config.sections import DataSettings
from fedacg.core.randomness import numpy_generator
from fedacg.core.tensors import Inputs, each, join
from fedacg.data.examples import (
    Clients,
    Examples,
    FederatedData,
    ListedClients,
    SpanExamples,
    SplitClients,
    ViewExamples,
    labels,
)
from fedacg.errors import SettingError


@dataclass(frozen=True)
class JoinedExamples:
    """The examples of several one after another; a part is looked up when it is needed."""

    parts: Sequence[Examples] | Clients
    sizes: Sequence[int] | None = None
    """The size of each; None counts them."""

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.sizes or [len(self.parts[i]) for i in range(len(self.parts))]))

    def __len__(self) -> int:
        return self._ends[-1]

    def fetch(self, index: Tensor) -> tuple[Inputs, Tensor]:
        order, places = self._by_part(index)
        fetched = [self.parts[part].fetch(inside) for part, inside in places]
        back = order.argsort()
        x = join([x for x, _ in fetched], torch.cat)
        return each(lambda tensor: tensor[back], x), torch.cat([y for _, y in fetched])[back]

    def labels(self, index: Tensor) -> Tensor:
        order, places = self._by_part(index)
        return torch.cat([labels(self.parts[part], inside) for part, inside in places])[order.argsort()]

    def _by_part(self, index: Tensor) -> tuple[Tensor, list[tuple[int, Tensor]]]:
        """The order that puts positions part after part, and the positions within each part."""
        order = torch.argsort(index, stable=True)
        places: list[tuple[int, list[int]]] = []
        for position in index[order].tolist():
            part = bisect_right(self._ends, position)
            if not places or places[-1][0] != part:
                places.append((part, []))
            places[-1][1].append(position - (self._ends[part - 1] if part else 0))
        if not places:  # an empty request: an empty part of the first
            places.append((0, []))
        return order, [(part, torch.tensor(inside, dtype=torch.int64)) for part, inside in places]


def pool(data: FederatedData) -> FederatedData:
    """All data in one place: a federation of one client that has the examples of all."""
    clients = data.clients
    if isinstance(clients, SplitClients):
        everything: Examples = ViewExamples(clients.base, clients.order)
    else:
        everything = JoinedExamples(clients, [clients.size(client) for client in range(len(clients))])
    return replace(data, clients=ListedClients([everything]))


@dataclass(frozen=True)
class _Part:
    """Each client's held-out examples, or the remaining ones."""

    whole: Clients
    fraction: float
    seed: int
    held: bool

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, client: int, /) -> Examples:
        examples = self.whole[client]
        count = self._count(len(examples))
        order = numpy_generator(self.seed, "held out", client).permutation(len(examples))
        part = torch.from_numpy(order[:count] if self.held else order[count:]).sort().values
        return ViewExamples(examples, part)

    def size(self, client: int) -> int:
        whole = self.whole.size(client)
        return self._count(whole) if self.held else whole - self._count(whole)

    def _count(self, examples: int) -> int:
        """At least one, but never all."""
        return min(max(1, round(self.fraction * examples)), examples - 1)


def hold_out_tests(data: FederatedData, fraction: float, seed: int) -> FederatedData:
    """The same data with a part of each client's examples held out for testing; a client with one keeps it."""
    rest, held = (_Part(data.clients, fraction, seed, part) for part in (False, True))
    return replace(data, clients=rest, own_tests=held)


# Validation data: a part of the training data, or of the test set, that is held out for choosing


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
