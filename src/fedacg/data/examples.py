"""What the trainer needs of data: examples fetched by position, clients as views, an input pipeline.

Examples stay in their storage type (images as uint8 in one shared tensor); a batch becomes floating
point only when it is about to be used. Nothing here knows where data come from or how they are split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedacg.core.tensors import Inputs, each, join
from fedacg.core.vector import FlatModel

_CHUNK = 4096
"""Examples fetched at a time if labels cannot be read without inputs."""


class Examples(Protocol):
    """Labelled examples that can be fetched by position."""

    def __len__(self) -> int: ...

    def fetch(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """Inputs (in storage type) and labels at these positions (int64)."""
        ...


@runtime_checkable
class Labelled(Protocol):
    """Examples whose labels can be read without fetching inputs; optional."""

    def labels(self, index: Tensor) -> Tensor: ...


class Clients(Protocol):
    """The clients of a federation; each is made when it takes part, so N costs nothing."""

    def __len__(self) -> int: ...

    def __getitem__(self, client: int, /) -> Examples: ...

    def size(self, client: int) -> int:
        """How many training examples the client has, known without fetching any."""
        ...


class Pipeline(Protocol):
    """From storage type to model input; augments when given a generator."""

    def __call__(self, x: Tensor, augment: torch.Generator | None = None) -> Tensor: ...


@dataclass(frozen=True)
class TensorExamples:
    """Examples in two tensors whose first dimension counts them."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        index = index.to(self.x.device)
        return self.x.index_select(0, index), self.y.index_select(0, index)  # four times as fast as `x[index]`

    def labels(self, index: Tensor) -> Tensor:
        return self.y[index]


@dataclass(frozen=True)
class SeveralExamples:
    """Examples whose inputs are several tensors, by position or by name."""

    x: tuple[Tensor, ...] | dict[str, Tensor]
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def fetch(self, index: Tensor) -> tuple[Inputs, Tensor]:
        return each(lambda tensor: tensor[index], self.x), self.y[index]

    def labels(self, index: Tensor) -> Tensor:
        return self.y[index]


def in_memory(x: Inputs, y: Tensor) -> TensorExamples | SeveralExamples:
    """Examples of fetched inputs and labels."""
    return TensorExamples(x, y) if isinstance(x, Tensor) else SeveralExamples(x, y)


@dataclass(frozen=True)
class ViewExamples:
    """A selection of other examples, by position."""

    base: Examples
    index: Tensor

    def __len__(self) -> int:
        return self.index.size(0)  # `len` of a tensor takes five times as long

    @property
    def places(self) -> Tensor:
        """Their positions in the base."""
        return self.index

    def fetch(self, index: Tensor) -> tuple[Inputs, Tensor]:
        return self.base.fetch(self.index[index])

    def labels(self, index: Tensor) -> Tensor:
        return labels(self.base, self.index[index])


@dataclass(frozen=True)
class SpanExamples:
    """A slice of other examples, from `first` up to `last`."""

    base: Examples
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def places(self) -> Tensor:
        """Their positions in the base."""
        return torch.arange(self.first, self.last)

    def fetch(self, index: Tensor) -> tuple[Inputs, Tensor]:
        return self.base.fetch(index + self.first)

    def labels(self, index: Tensor) -> Tensor:
        return labels(self.base, index + self.first)


@dataclass(frozen=True)
class ListedClients:
    """Clients given one by one, as a user's list."""

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
        first, last = self._span(client)
        return ViewExamples(self.base, self.order.narrow(0, first, last - first))

    def size(self, client: int) -> int:
        first, last = self._span(client)
        return last - first

    def _span(self, client: int) -> list[int]:
        """Where a client's part of the order begins and ends; by NumPy in a quarter of the time."""
        span: list[int] = self.offsets.numpy()[client : client + 2].tolist()
        return span


@dataclass(frozen=True)
class OwnedClients:
    """Clients of examples sorted by owner: client i holds those of the owner `chosen[i]`."""

    base: Examples
    offsets: Tensor
    chosen: Tensor

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, client: int, /) -> Examples:
        owner = int(self.chosen[client])
        return SpanExamples(self.base, int(self.offsets[owner]), int(self.offsets[owner + 1]))

    def size(self, client: int) -> int:
        owner = int(self.chosen[client])
        return int(self.offsets[owner + 1] - self.offsets[owner])


@dataclass(frozen=True)
class Owners:
    """The owners of the examples, in data that come with clients.

    Both parts are sorted by owner, in the order of `names`: owner k has the training examples from
    `train[k]` up to `train[k + 1]`, at least one, and the test examples from `test[k]` up to `test[k + 1]`,
    which may be none.
    """

    names: tuple[str, ...]
    train: Tensor
    test: Tensor


@dataclass(frozen=True)
class Contents:
    """What the files of a data set hold."""

    train: Examples
    test: Examples
    owners: Owners | None = None
    """None for data without clients of their own."""
    copy: Path | None = None
    """Where they were read from; None for data that come with the package."""
    differences: tuple[str, ...] = ()
    """Differences from the published data set, each a phrase without a subject."""


@dataclass(frozen=True)
class Origin:
    """Which copy of a data set was read."""

    copy: str
    train: int
    test: int
    clients: int | None
    """None for data without clients of their own."""
    differences: tuple[str, ...]
    """Differences from the published data set; none for a complete copy."""

    @classmethod
    def of(cls, contents: Contents) -> "Origin":
        clients = None if contents.owners is None else len(contents.owners.names)
        sizes = len(contents.train), len(contents.test)
        return cls(str(contents.copy), *sizes, clients, contents.differences)


@dataclass(frozen=True)
class Dataset:
    """A data set before it is split among clients."""

    name: str
    train: Examples
    test: Examples
    pipeline: Pipeline
    classes: int
    shape: tuple[int, ...]
    """Shape of one input as the model sees it, without the batch dimension."""
    owners: Owners | None = None
    """None for data without clients of their own."""
    origin: Origin | None = None
    """None for data that were not read from published files."""


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
    origin: Origin | None = None
    """Which copy they were read from; None for data that were not read from published files."""
    checksums: Mapping[str, str] | None = None
    """Checksums of the test examples and of the split; None for data given as objects."""
    validation: Examples | None = None
    """The validation data; None if nothing is held out."""
    names: tuple[str, ...] = ()
    """The clients' names; none if they have only numbers."""
    own_tests: Clients | None = None
    """Each client's own test examples, which may be none; None if test examples have no owners."""

    def name_of(self, client: int) -> str:
        """A client's name in tables and files."""
        return self.names[client] if self.names else str(client)


def fetch(examples: Examples, index: Tensor, device: torch.device) -> tuple[Inputs, Tensor]:
    """Inputs and labels at these positions, on a device."""
    x, y = examples.fetch(index)
    return each(lambda tensor: tensor.to(device), x), y.to(device)


def feed(flat: FlatModel, pipeline: Pipeline, x: Inputs, augment: torch.Generator | None = None) -> Inputs:
    """Fetched inputs as the model takes them; of several tensors, each goes through the pipeline."""
    return each(lambda tensor: flat.prepare(pipeline(tensor, augment)), x)


def joined(examples: Sequence[Examples]) -> Examples:
    """Several examples as one, one after the other; parts of the same base are one part of it."""
    views = [part for part in examples if isinstance(part, ViewExamples | SpanExamples)]
    if len(views) == len(examples) and all(view.base is views[0].base for view in views):
        return ViewExamples(views[0].base, torch.cat([view.places for view in views]))
    return _Joined(examples)


@dataclass(frozen=True)
class _Joined:
    """Examples that have nothing in common: each part is asked for its own."""

    parts: Sequence[Examples]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def fetch(self, index: Tensor) -> tuple[Inputs, Tensor]:
        ends = torch.tensor([len(part) for part in self.parts]).cumsum(0)
        owner = torch.bucketize(index, ends, right=True)
        order = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=len(self.parts)).tolist()
        asked = zip(self.parts, torch.split(index[order], counts), [0, *ends.tolist()], strict=False)
        found = [part.fetch(places - first) for part, places, first in asked if len(places)]
        back = order.argsort()
        x, y = join([x for x, _ in found], torch.cat), torch.cat([y for _, y in found])
        return each(lambda rows: rows[back.to(rows.device)], x), y[back.to(y.device)]


def labels(examples: Examples, index: Tensor | None = None) -> Tensor:
    """The labels at these positions, all by default; inputs are fetched only if unavoidable."""
    if index is None:
        index = torch.arange(len(examples))
    if isinstance(examples, Labelled):
        return examples.labels(index)
    parts = [examples.fetch(part)[1] for part in torch.split(index, _CHUNK)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
