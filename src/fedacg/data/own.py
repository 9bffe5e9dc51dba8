"""Users' own data as a federation: (x, y) per client, or a map-style data set with an index per client.

Everything is checked here, once, and errors name the client; from then on own data are like any other.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedacg.data.examples import Examples, FederatedData, ListedClients, Pipeline, TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError

Array = Tensor | NDArray[Any]
Pair = tuple[Array, Array]

_CHUNK = 4096
"""How many examples are fetched at a time when only their labels are wanted."""


class MapStyle(Protocol):
    """A data set in PyTorch's map style: (x, y) by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


class MappedExamples:
    """The examples of one client in a map-style data set, by their positions in it."""

    def __init__(self, dataset: MapStyle, indices: ArrayLike | Tensor) -> None:
        self.dataset = dataset
        self.indices = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        if self.indices.ndim != 1:
            raise InputError(f"indices: must be one row of positions, not {tuple(self.indices.shape)}")
        for position in self.indices[(self.indices < 0) | (self.indices >= len(dataset))].tolist():
            raise InputError(f"indices: {position} is not a position in a data set of {len(dataset)} examples")

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        pairs = [self.dataset[position] for position in self.indices[index].tolist()]
        return _tensor([x for x, _ in pairs], "dataset: x"), _labels([y for _, y in pairs], "dataset: y")


def from_pairs(
    clients: Sequence[Pair | Examples],
    test: Pair | Examples,
    *,
    name: str = "own",
    classes: int | None = None,
    pipeline: Pipeline | None = None,
) -> FederatedData:
    """A federation of the given clients, each a pair of arrays or something that satisfies `Examples`.

    Integer labels are classes, counted over all clients and the test set unless `classes` says how
    many there are (which spares a pass over data that are not in memory). Floating-point labels are
    kept as they are, for a loss of the user's own, and `classes` is then 0.
    """
    if len(clients) == 0:
        raise InputError("clients: must have at least one client")
    listed = [_examples(client, f"clients[{i}]") for i, client in enumerate(clients)]
    named = [(f"clients[{i}]", examples) for i, examples in enumerate(listed)]
    named.append(("test", _examples(test, "test")))
    shape = _common_shape(named)
    counted = _count_classes(named, classes)
    return FederatedData(name, ListedClients(listed), named[-1][1], pipeline or PlainPipeline(), counted, shape)


def _examples(given: Pair | Examples, place: str) -> Examples:
    if not isinstance(given, tuple | list):
        if not (hasattr(given, "fetch") and hasattr(given, "__len__")):
            raise InputError(
                f"{place}: must be a pair (x, y) or have __len__ and fetch, not {type(given).__name__}"
            )
        examples: Examples = given
    else:
        if len(given) != 2:
            raise InputError(f"{place}: must be a pair (x, y), not {len(given)} things")
        x, y = _tensor(given[0], f"{place}: x"), _labels(given[1], f"{place}: y")
        if x.ndim == 0 or y.ndim == 0:
            raise InputError(f"{place}: x and y must have a first dimension that counts the examples")
        if len(x) != len(y):
            raise InputError(f"{place}: x has {len(x)} examples and y has {len(y)}; they must be as many")
        examples = TensorExamples(x, y)
    if len(examples) == 0:
        raise InputError(f"{place}: must have at least one example")
    return examples


def _tensor(given: object, place: str) -> Tensor:
    try:
        if isinstance(given, np.ndarray):
            return torch.from_numpy(np.require(given, requirements=["W"]))
        if isinstance(given, list) and given and isinstance(given[0], Tensor | np.ndarray):
            return torch.stack([_tensor(item, place) for item in given])
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{place}: cannot be made a tensor ({error}); give tensors or NumPy arrays") from None


def _labels(given: object, place: str) -> Tensor:
    y = _tensor(given, place)
    if y.is_complex():
        raise InputError(f"{place}: must be integers (classes) or floats, not {y.dtype}")
    return y if y.is_floating_point() else y.long()


def _common_shape(named: list[tuple[str, Examples]]) -> tuple[int, ...]:
    (first, examples), *rest = named
    expected = _input_type(examples)
    for place, examples in rest:
        if (found := _input_type(examples)) != expected:
            raise InputError(
                f"{place}: x holds {found[1]} of shape {found[0]}, {first} {expected[1]} of {expected[0]}"
            )
    return expected[0]


def _input_type(examples: Examples) -> tuple[tuple[int, ...], torch.dtype]:
    x, _ = examples.fetch(torch.zeros(1, dtype=torch.int64))
    return tuple(x.shape[1:]), x.dtype


def _count_classes(named: list[tuple[str, Examples]], classes: int | None) -> int:
    if classes is not None and classes < 1:
        raise InputError(f"classes = {classes}: must be at least 1")
    # With the number given, only what is in memory is checked against it.
    read = named if classes is None else [part for part in named if isinstance(part[1], TensorExamples)]
    spans = [(place, _label_span(examples)) for place, examples in read]
    for place, span in spans:
        if span is None and (classes is not None or any(other is not None for _, other in spans)):
            raise InputError(f"{place}: y must be whole numbers, as classes are; it is floating point")
        if span is not None and (span[0] < 0 or (classes is not None and span[1] >= classes)):
            allowed = "0 or greater" if classes is None else f"from 0 to {classes - 1}"
            raise InputError(f"{place}: y has labels from {span[0]} to {span[1]}; must be {allowed}")
    if classes is not None:
        return classes
    return 1 + max((span[1] for _, span in spans if span is not None), default=-1)


def _label_span(examples: Examples) -> tuple[int, int] | None:
    """The smallest and the largest label, or None when they are floating point."""
    low, high = [], []
    for first in range(0, len(examples), _CHUNK):
        _, y = examples.fetch(torch.arange(first, min(first + _CHUNK, len(examples))))
        if y.is_floating_point():
            return None
        low.append(int(y.min()))
        high.append(int(y.max()))
    return min(low), max(high)
