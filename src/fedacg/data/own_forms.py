"""User data in their usual forms: pairs of arrays, map-style data sets, clients loaded on demand.

Each becomes `Examples`; own_data.py checks that they are consistent. Tables and folders are in
own_tables.py.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import index as whole
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from fedacg.core.tensors import Inputs, described, each, join, tensors
from fedacg.data.examples import Examples, SeveralExamples, TensorExamples, ViewExamples, in_memory
from fedacg.errors import InputError

Array = Tensor | NDArray[Any]
Several = tuple[Array, ...] | Mapping[str, Array]
"""Inputs of a model that takes several tensors, by position or by name."""
Pair = tuple[Array | Several, Array]
Client = Any
"""A pair, `Examples`, or a map-style data set of pairs such as torch's `Dataset`."""


class Kind(NamedTuple):
    """Type and shape of examples, which must be the same for all clients."""

    inputs: str
    """Type and shape, in words."""
    label: tuple[int, ...]
    """The shape of one."""
    shape: tuple[int, ...]
    """The shape of one input; none for several tensors."""


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

    def fetch(self, index: Tensor) -> tuple[Inputs, Tensor]:
        pairs = [self.dataset[position] for position in self.indices[index].tolist()]
        x = join([to_inputs(x, "dataset: x") for x, _ in pairs], lambda items: to_tensor(items, "dataset: x"))
        return x, to_labels([y for _, y in pairs], "dataset: y")


def to_examples(given: Client, place: str) -> Examples:
    """The examples of one client, or of a test set, whatever form they have; errors call them `place`."""
    if isinstance(given, tuple | list):
        return _several(given, place) if len(given) == 2 and _is_several(given[0]) else pair_examples(given, place)
    if isinstance(given, DataLoader):
        raise InputError(f"{place}: is a DataLoader, which makes batches of its own; give its .dataset")
    if hasattr(given, "fetch") and hasattr(given, "__len__"):
        return not_empty(given, place)
    if isinstance(given, TensorDataset) and len(given.tensors) == 2:
        return pair_examples(given.tensors, place)
    if isinstance(given, Subset):
        whole_set: Any = given.dataset
        base = to_examples(whole_set, place)
        positions = MappedExamples(whole_set, given.indices).indices  # checks them
        return not_empty(ViewExamples(base, positions), place)
    if _is_table(given):
        advice = "name its columns: fedacg.data.columns(…, inputs=…, label=…)"
        raise InputError(f"{place}: is a {type(given).__name__}; {advice}")
    mapped = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    if not mapped or isinstance(given, IterableDataset | Tensor | np.ndarray | str | bytes):
        raise InputError(
            f"{place}: must be a pair (x, y), a data set of pairs, or have __len__ and fetch, "
            f"not {type(given).__name__}"
        )
    return _mapped(given, place)


def _mapped(given: MapStyle, place: str) -> Examples:
    """All examples of a map-style data set; its first item shows their form."""
    examples = not_empty(MappedExamples(given, range(len(given))), place)
    item: object = given[0]
    if isinstance(item, Mapping):
        advice = "name its entries: fedacg.data.columns(…, inputs=…, label=…)"
        raise InputError(f"{place}: its items are dictionaries; {advice}")
    if not isinstance(item, tuple | list) or len(item) != 2:
        found = f"{len(item)} things" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
        raise InputError(
            f"{place}: its items are {found}; must be pairs (x, y), where x may be a tuple of tensors"
        )
    return examples


def pair_examples(given: Sequence[object], place: str) -> TensorExamples:
    """A pair (x, y) of arrays as examples."""
    if len(given) != 2:
        raise InputError(f"{place}: must be a pair (x, y), not {len(given)} things")
    x, y = to_tensor(given[0], f"{place}: x"), to_labels(given[1], f"{place}: y")
    _check_lengths(x, y, place)
    return TensorExamples(x, y)


def _several(given: Sequence[Any], place: str) -> SeveralExamples:
    """A pair (x, y) whose x is several arrays."""
    x, y = to_inputs(given[0], f"{place}: x"), to_labels(given[1], f"{place}: y")
    assert not isinstance(x, Tensor)
    if not x:
        raise InputError(f"{place}: x has no arrays in it")
    _check_lengths(x, y, place)
    return SeveralExamples(x, y)


def _check_lengths(x: Inputs, y: Tensor, place: str) -> None:
    for each_x in tensors(x):
        if each_x.ndim == 0 or y.ndim == 0:
            raise InputError(f"{place}: x and y must have a first dimension that counts the examples")
        if len(each_x) != len(y):
            raise InputError(f"{place}: x has {len(each_x)} examples and y has {len(y)}; the numbers must match")
    if len(y) == 0:
        raise _empty(place)


def not_empty(examples: Examples, place: str) -> Examples:
    """The examples; refused if there are none."""
    if len(examples) == 0:
        raise _empty(place)
    return examples


def _empty(place: str) -> InputError:
    return InputError(f"{place}: must have at least one example")


def _is_several(x: object) -> bool:
    """Whether inputs are several tensors: a dictionary, or a tuple of arrays, which no array is made of."""
    return isinstance(x, Mapping) or (isinstance(x, tuple) and all(isinstance(a, Tensor | np.ndarray) for a in x))


def to_inputs(given: object, place: str) -> Inputs:
    """One tensor, or several by position or by name."""
    if isinstance(given, Mapping):
        for name in given:
            if not (isinstance(name, str) and name.isidentifier()):
                raise InputError(
                    f"{place}: {name!r} is not an argument name of a model; must be as in forward(ids, mask)"
                )
        return {str(name): to_tensor(array, f"{place}[{name!r}]") for name, array in given.items()}
    if isinstance(given, tuple) and _is_several(given):
        return tuple(to_tensor(array, f"{place}[{number}]") for number, array in enumerate(given))
    return to_tensor(given, place)


def to_tensor(given: object, place: str) -> Tensor:
    """Numbers of any kind as a tensor."""
    try:
        if isinstance(given, np.ndarray):
            return torch.from_numpy(np.require(given, requirements=["W"]))
        if isinstance(given, list) and given and isinstance(given[0], Tensor | np.ndarray):
            return torch.stack([to_tensor(item, place) for item in given])
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{place}: cannot be made a tensor ({error}); give tensors or NumPy arrays") from None


def to_labels(given: object, place: str) -> Tensor:
    """Labels as a tensor: whole numbers are classes, floats are left as they are."""
    y = to_tensor(given, place)
    if y.is_complex():
        raise InputError(f"{place}: must be integers (classes) or floats, not {y.dtype}")
    return y if y.is_floating_point() else y.long()


def _is_table(given: object) -> bool:
    return isinstance(given, Mapping) or hasattr(given, "iloc") or hasattr(given, "column_names")


class LazyClients:
    """Clients that are loaded when they take part, so that at most two are in the memory of any process.

    `load(i)` gives client i, in any form that `fedacg.run` takes for one. `sizes` are the numbers of examples;
    without them, a client is loaded an extra time to be counted. `load_test(i)` gives a client's own test
    examples.
    """

    def __init__(
        self,
        count: int,
        load: Callable[[int], Client],
        sizes: Sequence[int] | None = None,
        *,
        names: Sequence[str] | None = None,
        load_test: Callable[[int], Client] | None = None,
    ) -> None:
        for what, listed in (("sizes", sizes), ("names", names)):
            if listed is not None and len(listed) != count:
                raise InputError(f"{what}: has {len(listed)} entries for {count} clients; must have one for each")
        self._sizes = dict(enumerate(map(whole, sizes))) if sizes is not None else {}
        for client, size in self._sizes.items():
            if size < 1:
                raise InputError(f"sizes[{client}] = {size}: must be at least 1")
        self.count, self.load, self.load_test = count, load, load_test
        self.names = tuple(map(str, names)) if names is not None else ()
        self.like: Kind | None = None
        """The type and shape of every client's examples; set when the first has been seen."""
        self.classes = 0
        """The number of classes; 0 if unknown."""
        self._last: tuple[int, Examples] | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int, /) -> Examples:
        if not 0 <= client < self.count:
            raise IndexError(client)
        if self._last is None or self._last[0] != client:
            self._last = None  # free the old one before loading the new one
            self._last = client, self._checked(client)
        return self._last[1]

    def size(self, client: int) -> int:
        if client not in self._sizes:
            self._sizes[client] = len(self[client])
        return self._sizes[client]

    def place(self, client: int) -> str:
        """A client's name in errors."""
        return f"clients[{self.names[client]!r}]" if self.names else f"clients[{client}]"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    def _checked(self, client: int) -> Examples:
        place = self.place(client)
        examples = to_examples(self.load(client), place)
        if client in self._sizes and len(examples) != self._sizes[client]:
            raise InputError(f"{place}: has {len(examples)} examples, but sizes says {self._sizes[client]}")
        if self.like is not None:
            check_like(examples, place, self.like, "the first client")
            if self.classes and isinstance(examples, TensorExamples | SeveralExamples):
                low, high = int(examples.y.min()), int(examples.y.max())
                if low < 0 or high >= self.classes:
                    raise InputError(
                        f"{place}: y has labels from {low} to {high}; must be from 0 to {self.classes - 1}"
                    )
        return examples


def kind_of(examples: Examples) -> Kind:
    """Type and shape of examples, taken from the first."""
    x, y = examples.fetch(torch.zeros(1, dtype=torch.int64))
    return Kind(described(x), tuple(y.shape[1:]), tuple(x.shape[1:]) if isinstance(x, Tensor) else ())


def check_like(examples: Examples, place: str, like: Kind, first: str) -> None:
    """Refuse examples whose inputs or labels differ in type or shape from the first."""
    kind = kind_of(examples)
    if kind.inputs != like.inputs:
        raise InputError(f"{place}: x holds {kind.inputs}, {first} {like.inputs}")
    if kind.label != like.label:
        raise InputError(f"{place}: a label has shape {kind.label}, one of {first} {like.label}")


def nothing_like(examples: Examples) -> Examples:
    """An empty set of examples of the same kind."""
    x, y = examples.fetch(torch.zeros(1, dtype=torch.int64))
    return in_memory(each(lambda tensor: tensor[:0], x), y[:0])
