"""What the trainer needs of data: examples fetched by position, clients as views, an input pipeline.

Examples stay in their storage type (images as uint8 in one shared tensor); a batch becomes floating
point only when it is about to be used. They are copied once to the device that computes, if they fit. Nothing here
knows where data come from or how they are split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, overload, runtime_checkable

import torch
from torch import Tensor

from fedacg.core.tensors import Inputs, each, join, spare
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
        first, last = self.offsets[client : client + 2].tolist()
        return ViewExamples(self.base, self.order[first:last])

    def size(self, client: int) -> int:
        first, last = self.offsets[client : client + 2].tolist()
        return int(last - first)


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


def fetch_together(examples: Sequence[Examples], index: Tensor, counts: Tensor) -> tuple[Inputs, Tensor]:
    """The examples of several clients at their positions: `counts` of the index for each, in order.

    Views on the same base are fetched in one go.
    """
    views = [part for part in examples if isinstance(part, ViewExamples)]
    if len(views) == len(examples) and all(view.base is views[0].base for view in views):
        lengths = torch.tensor([len(view) for view in views])
        shift = torch.repeat_interleave(lengths.cumsum(0) - lengths, counts)
        return views[0].base.fetch(torch.cat([view.index for view in views])[index + shift])
    parts = zip(examples, torch.split(index, counts.tolist()), strict=True)
    fetched = [part.fetch(positions) for part, positions in parts]
    return join([x for x, _ in fetched], torch.cat), torch.cat([y for _, y in fetched])


def labels(examples: Examples, index: Tensor | None = None) -> Tensor:
    """The labels at these positions, all by default; inputs are fetched only if unavoidable."""
    if index is None:
        index = torch.arange(len(examples))
    if isinstance(examples, Labelled):
        return examples.labels(index)
    parts = [examples.fetch(part)[1] for part in torch.split(index, _CHUNK)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def settle(data: FederatedData, device: torch.device) -> FederatedData:
    """The same data, with the examples' tensors on a device."""
    if device.type == "cpu":
        return data
    mover = _Mover(device, spare(device))
    validation = None if data.validation is None else mover.move(data.validation)
    own_tests = None if data.own_tests is None else mover.move(data.own_tests)
    clients, test = mover.move(data.clients), mover.move(data.test)
    return replace(data, clients=clients, test=test, validation=validation, own_tests=own_tests)


class _Mover:
    """Copies every tensor once, however many views there are of it, until the space is used up."""

    def __init__(self, device: torch.device, room: int) -> None:
        self._device, self._room = device, room
        self._moved: dict[int, TensorExamples] = {}

    @overload
    def move(self, value: Examples) -> Examples: ...
    @overload
    def move(self, value: Clients) -> Clients: ...
    def move(self, value: Examples | Clients) -> Examples | Clients:
        if move_parts := getattr(value, "moved", None):
            moved: Examples | Clients = move_parts(self.move)
            return moved
        match value:
            case TensorExamples():
                return self._copy(value)
            case ViewExamples() | SpanExamples() | SplitClients() | OwnedClients():
                return replace(value, base=self.move(value.base))
            case ListedClients():
                return ListedClients([self.move(examples) for examples in value.clients])
        return value

    def _copy(self, examples: TensorExamples) -> TensorExamples:
        if id(examples) not in self._moved:
            size = examples.x.nbytes + examples.y.nbytes
            if size > self._room:
                return examples
            self._room -= size
            moved = TensorExamples(examples.x.to(self._device), examples.y.to(self._device))
            self._moved[id(examples)] = moved
        return self._moved[id(examples)]
