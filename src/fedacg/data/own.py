"""Users' own data: clients given one by one, or a data set that any split can deal, by the name of a function too.

Everything is checked here, once, and errors name the part that does not fit; from then on own data are like any
other. Data in files live in folder.py.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedacg.core import plugins
from fedacg.data.examples import (
    Dataset,
    Examples,
    FederatedData,
    ListedClients,
    Owners,
    Pipeline,
    TensorExamples,
    ViewExamples,
    labels,
)
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError

Array = Tensor | NDArray[Any]
Pair = tuple[Array, Array]
Part = tuple[str, Examples]
"""Examples, and what errors call them."""


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
    if not hasattr(clients, "__len__"):
        raise InputError(f"clients: is a {type(clients).__name__}; must be a list or another sequence of clients")
    if len(clients) == 0:
        raise InputError("clients: must have at least one client")
    listed = [_examples(client, f"clients[{i}]") for i, client in enumerate(clients)]
    named = [(f"clients[{i}]", examples) for i, examples in enumerate(listed)]
    named.append(("test", _examples(test, "test")))
    shape = _common_shape(named)
    counted = _count_classes(named, classes)
    return FederatedData(name, ListedClients(listed), named[-1][1], pipeline or PlainPipeline(), counted, shape)


def dataset(
    train: Pair | Examples,
    test: Pair | Examples,
    *,
    clients: Sequence[int] | Sequence[str] | Array | None = None,
    test_clients: Sequence[int] | Sequence[str] | Array | None = None,
    name: str = "own",
    classes: int | None = None,
    pipeline: Pipeline | None = None,
) -> Dataset:
    """A data set that every split can deal.

    `clients` says whose each training example is, by a number or a name, and makes the split `natural` possible;
    `test_clients` says so for the test examples. Without it they are nobody's, and any choice of clients is tested
    on all of them. Labels are classes, counted unless `classes` says how many there are.
    """
    parts = [("train", _examples(train, "train")), ("test", _examples(test, "test"))]
    counted, shape = classes_and_shape(parts, classes)
    (_, trains), (_, tests) = parts
    owners = None
    if clients is None and test_clients is not None:
        raise InputError("test_clients: are given without clients, whose names they must be")
    if clients is not None:
        owner = _ids(clients, "clients", len(trains))
        names = np.unique(owner)
        trains, train_offsets = _sorted(trains, owner, names)
        test_offsets = torch.zeros(len(names) + 1, dtype=torch.int64)
        if test_clients is not None:
            tested = _ids(test_clients, "test_clients", len(tests))
            for stranger in sorted({*tested.tolist()} - {*names.tolist()}):
                raise InputError(f"test_clients: {stranger!r} has no training examples")
            tests, test_offsets = _sorted(tests, tested, names)
        owners = Owners(tuple(map(str, names.tolist())), train_offsets, test_offsets)
    return Dataset(name, trains, tests, pipeline or PlainPipeline(), counted, shape, owners)


def from_function(name: str) -> Dataset:
    """The data set that a user's function, named as in `my_data:wine`, returns when it is called."""
    function = plugins.load_function("data.name", name)
    try:
        made = function()
    except InputError as error:  # from one of the checks above, which do not know the name
        raise InputError(f"data.name = {name}: {error}") from error
    if not isinstance(made, Dataset):
        raise InputError(
            f"data.name = {name}: returned {type(made).__name__}; must return what fedacg.data.dataset makes"
        )
    return made


def classes_and_shape(parts: list[Part], classes: int | None = None) -> tuple[int, tuple[int, ...]]:
    """How many classes there are, and the shape of an input; labels must be classes, one an example."""
    for place, examples in parts:
        _, y = examples.fetch(torch.zeros(1, dtype=torch.int64))
        if y.is_floating_point():
            raise _no_classes(place)
        if y.ndim != 1:
            raise InputError(
                f"{place}: y must be one label an example; those here have shape {tuple(y.shape[1:])}"
            )
    return _count_classes(parts, classes), _common_shape(parts)


def pair_examples(given: Sequence[object], place: str) -> TensorExamples:
    """A pair (x, y) of arrays as examples."""
    if len(given) != 2:
        raise InputError(f"{place}: must be a pair (x, y), not {len(given)} things")
    x, y = _tensor(given[0], f"{place}: x"), _labels(given[1], f"{place}: y")
    if x.ndim == 0 or y.ndim == 0:
        raise InputError(f"{place}: x and y must have a first dimension that counts the examples")
    if len(x) != len(y):
        raise InputError(f"{place}: x has {len(x)} examples and y has {len(y)}; they must be as many")
    if len(y) == 0:
        raise _empty(place)
    return TensorExamples(x, y)


def _examples(given: Pair | Examples, place: str) -> Examples:
    if isinstance(given, tuple | list):
        return pair_examples(given, place)
    if not (hasattr(given, "fetch") and hasattr(given, "__len__")):
        raise InputError(f"{place}: must be a pair (x, y) or have __len__ and fetch, not {type(given).__name__}")
    if len(given) == 0:
        raise _empty(place)
    return given


def _empty(place: str) -> InputError:
    return InputError(f"{place}: must have at least one example")


def _no_classes(place: str) -> InputError:
    return InputError(f"{place}: y must be whole numbers, as classes are; it is floating point")


def _ids(given: Sequence[int] | Sequence[str] | Array, place: str, count: int) -> NDArray[Any]:
    """One number or one name an example."""
    ids = np.asarray(given)
    if ids.dtype.kind == "O" and all(isinstance(each, str) for each in ids.flat):
        ids = ids.astype(str)
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise InputError(f"{place}: must be one row of whole numbers or of texts, not {ids.dtype} {ids.shape}")
    if len(ids) != count:
        raise InputError(f"{place}: has {len(ids)} entries for {count} examples; they must be as many")
    return ids


def _sorted(examples: Examples, owner: NDArray[Any], names: NDArray[Any]) -> tuple[Examples, Tensor]:
    """The examples owner after owner, and where each owner's begin."""
    order = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[order], names, side="right")
    return ViewExamples(examples, torch.from_numpy(order)), torch.from_numpy(np.concatenate([[0], ends]))


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


def _common_shape(named: list[Part]) -> tuple[int, ...]:
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


def _count_classes(named: list[Part], classes: int | None) -> int:
    if classes is not None and classes < 1:
        raise InputError(f"classes = {classes}: must be at least 1")
    # With the number given, only what is in memory is checked against it.
    read = named if classes is None else [part for part in named if isinstance(part[1], TensorExamples)]
    spans = [(place, _label_span(examples)) for place, examples in read]
    for place, span in spans:
        if span is None and (classes is not None or any(other is not None for _, other in spans)):
            raise _no_classes(place)
        if span is not None and (span[0] < 0 or (classes is not None and span[1] >= classes)):
            allowed = "0 or greater" if classes is None else f"from 0 to {classes - 1}"
            raise InputError(f"{place}: y has labels from {span[0]} to {span[1]}; must be {allowed}")
    if classes is not None:
        return classes
    return 1 + max((span[1] for _, span in spans if span is not None), default=-1)


def _label_span(examples: Examples) -> tuple[int, int] | None:
    """The smallest and the largest label, or None when they are floating point."""
    y = labels(examples)
    return None if y.is_floating_point() else (int(y.min()), int(y.max()))
