"""What the trainer needs of data: examples fetched by position, clients as views, an input pipeline.

Examples stay in their storage type (images as uint8 in one shared tensor); a batch becomes floating
point only when it is about to be used. Nothing here knows where data come from or how they are split.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Examples(Protocol):
    """Labelled examples that can be fetched by position."""

    def __len__(self) -> int: ...

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (in storage type) and labels at these positions (int64)."""
        ...


class Clients(Protocol):
    """The clients of a federation; one is made when it takes part, so N costs nothing."""

    def __len__(self) -> int: ...

    def __getitem__(self, client: int, /) -> Examples: ...

    def size(self, client: int) -> int:
        """How many training examples the client has, known without fetching any."""
        ...


class Pipeline(Protocol):
    """From storage type to what the model eats; augments when it is given a generator."""

    def __call__(self, x: Tensor, augment: torch.Generator | None = None) -> Tensor: ...


@dataclass(frozen=True)
class TensorExamples:
    """Examples in two tensors whose first dimension counts them."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


@dataclass(frozen=True)
class ViewExamples:
    """A selection of other examples, by position."""

    base: Examples
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.base.fetch(self.index[index])


@dataclass(frozen=True)
class ListedClients:
    """Clients given one by one, as a user's own list."""

    clients: Sequence[Examples]

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, client: int, /) -> Examples:
        return self.clients[client]

    def size(self, client: int) -> int:
        return len(self.clients[client])


@dataclass(frozen=True)
class SplitClients:
    """Clients as views on one set of examples: client i holds order[offsets[i]:offsets[i + 1]]."""

    base: Examples
    order: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int, /) -> Examples:
        return ViewExamples(self.base, self.order[self.offsets[client] : self.offsets[client + 1]])

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])


@dataclass(frozen=True)
class FederatedData:
    """Everything a federation trains and tests on."""

    name: str
    clients: Clients
    test: Examples
    pipeline: Pipeline
    classes: int
    """How many classes the labels name; 0 when they are floating point and name none (own data only)."""
    shape: tuple[int, ...]
    """Shape of one input as the model sees it, without the batch dimension."""
