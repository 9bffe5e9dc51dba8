"""Clients' data rearranged: a part of each held out for testing, or all of them in one place."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from fedacg.core.randomness import numpy_generator
from fedacg.core.tensors import Inputs, each, join
from fedacg.data.examples import (
    Clients,
    Examples,
    FederatedData,
    ListedClients,
    SplitClients,
    ViewExamples,
    labels,
)


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
