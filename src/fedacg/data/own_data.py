"""User data: clients given one by one, or a data set for any split, also by the name of a function.

Everything is checked here, once, and errors name the invalid part; after that, user data are like any other. Data
in files are in own_tables.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacg.core import plugins
from fedacg.data.examples import (
    Clients,
    Dataset,
    Examples,
    FederatedData,
    ListedClients,
    Owners,
    Pipeline,
    SeveralExamples,
    TensorExamples,
    ViewExamples,
    labels,
)
from fedacg.data.held_out import JoinedExamples
from fedacg.data.own_forms import Array, Client, LazyClients, Pair, check_like, kind_of, nothing_like, to_examples
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError

Part = tuple[str, Examples]
"""Examples, and their name in errors."""


def from_pairs(
    clients: Sequence[Client] | Mapping[Any, Client] | LazyClients,
    test: Client | Mapping[Any, Client] | None = None,
    *,
    name: str = "own",
    classes: int | None = None,
    pipeline: Pipeline | None = None,
) -> FederatedData:
    """A federation of the given clients, each a pair of arrays or something that satisfies `Examples`.

    A dictionary gives clients their names. Anything else with a length, but for a list or tuple, is loaded client
    by client when it is needed. `test` may be a dictionary as well, with the test examples of each client that has
    some; the test set is then all of them. Integer labels are classes, counted over all clients and the test set
    unless `classes` says how many there are (which spares a pass over data that are not in memory). Floating-point
    labels are kept as they are, for a loss of the user's own, and `classes` is then 0.
    """
    names: tuple[str, ...] = ()
    lazy: LazyClients | None = None
    listed: Sequence[Client] = ()
    if isinstance(clients, Mapping):
        names, listed = tuple(map(str, clients)), list(clients.values())
    elif isinstance(clients, list | tuple):
        listed = clients
    elif not hasattr(clients, "__len__"):
        raise InputError(f"clients: is a {type(clients).__name__}; must be a list or another sequence of clients")
    else:
        lazy = _lazy(clients)
        names = lazy.names
    if len(clients) == 0:
        raise InputError("clients: must have at least one client")
    if len(set(names)) < len(names):
        twice = next(each for each in names if names.count(each) > 1)
        raise InputError(f"clients: two are called {twice!r}")
    places = [f"clients[{each!r}]" for each in names] or [f"clients[{i}]" for i in range(len(clients))]
    found: Clients = lazy or ListedClients(
        [to_examples(client, place) for client, place in zip(listed, places, strict=True)]
    )
    # No lazy client is held here: the first is freed when the next is loaded.
    tests, own_tests = _tests(test, places, lazy, found)
    like = kind_of(found[0])
    if lazy is None:
        parts = [(place, found[i]) for i, place in enumerate(places)] + tests
        for place, examples in parts[1:]:
            check_like(examples, place, like, places[0])
        counted = _count_classes(parts, classes)
    else:
        lazy.like = like
        for place, examples in tests:
            check_like(examples, place, like, places[0])
        looked_at = range(len(lazy) if classes is None else 1)
        counted = _count_classes(chain(((places[i], lazy[i]) for i in looked_at), tests), classes)
        lazy.classes = counted
    joined = tests[0][1] if len(tests) == 1 else JoinedExamples([examples for _, examples in tests])
    whole = joined if tests else nothing_like(found[0])
    return FederatedData(
        name, found, whole, pipeline or PlainPipeline(), counted, like.shape, names=names, own_tests=own_tests
    )


def _lazy(clients: Any) -> LazyClients:
    """A user's sequence as clients that are loaded on demand."""
    if isinstance(clients, LazyClients):
        return copy(clients)
    if isinstance(clients, Tensor | np.ndarray) or not hasattr(clients, "__getitem__"):
        raise InputError(f"clients: is a {type(clients).__name__}; must be a list or another sequence of clients")
    if hasattr(clients, "iloc") or hasattr(clients, "column_names"):
        raise InputError(
            f"clients: is a {type(clients).__name__}; name the column with the client of each row: "
            "fedacg.data.by_client(…, client=…, inputs=…, label=…)"
        )
    sizes = [clients.size(i) for i in range(len(clients))] if callable(getattr(clients, "size", None)) else None
    return LazyClients(len(clients), clients.__getitem__, sizes)


def _tests(
    test: Any, places: list[str], lazy: LazyClients | None, clients: Clients
) -> tuple[list[Part], Clients | None]:
    """The test sets, and each client's own if test examples have owners."""
    if isinstance(test, Mapping):
        nothing = nothing_like(clients[0])
        own = [nothing] * len(places)
        for key, given in test.items():
            place = f"clients[{key!r}]"
            if place not in places and f"clients[{str(key)!r}]" not in places:
                raise InputError(
                    f"test: {key!r} is not one of the clients; keys must be clients' names or numbers"
                )
            number = places.index(place if place in places else f"clients[{str(key)!r}]")
            own[number] = to_examples(given, f"test[{key!r}]")
        if not test:
            raise InputError("test: is an empty dictionary; leave it out to train without a test set")
        return [
            (f"test of {places[i]}", each) for i, each in enumerate(own) if each is not nothing
        ], ListedClients(own)
    tests = [] if test is None else [("test", to_examples(test, "test"))]
    if lazy is None or lazy.load_test is None:
        return tests, None
    return tests, LazyClients(len(lazy), lazy.load_test, names=lazy.names or None)


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
    """A data set for every split.

    `clients` says whose each training example is, by a number or a name, and makes the split `natural` possible;
    `test_clients` says so for the test examples. Without it they are nobody's, and any choice of clients is tested
    on all of them. Labels are classes, counted unless `classes` says how many there are.
    """
    parts = [("train", to_examples(train, "train")), ("test", to_examples(test, "test"))]
    counted, shape = classes_and_shape(parts, classes)
    (_, trains), (_, tests) = parts
    owners = None
    if clients is None and test_clients is not None:
        raise InputError("test_clients: are given without clients; give clients as well")
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
            f"data.name = {name}: returned {type(made).__name__}; must return a result of fedacg.data.dataset"
        )
    return made


def classes_and_shape(parts: list[Part], classes: int | None = None) -> tuple[int, tuple[int, ...]]:
    """The number of classes, and the shape of an input; labels must be classes, one per example."""
    for place, examples in parts:
        _, y = examples.fetch(torch.zeros(1, dtype=torch.int64))
        if y.is_floating_point():
            raise _no_classes(place)
        if y.ndim != 1:
            raise InputError(f"{place}: y must have one label per example; these have shape {tuple(y.shape[1:])}")
    return _count_classes(parts, classes), _common_shape(parts)


def _no_classes(place: str) -> InputError:
    return InputError(f"{place}: y must be whole numbers (classes); it is floating point")


def _ids(given: Sequence[int] | Sequence[str] | Array, place: str, count: int) -> NDArray[Any]:
    """One number or name per example."""
    ids = np.asarray(given)
    if ids.dtype.kind == "O" and all(isinstance(each, str) for each in ids.flat):
        ids = ids.astype(str)
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise InputError(f"{place}: must be one row of whole numbers or of texts, not {ids.dtype} {ids.shape}")
    if len(ids) != count:
        raise InputError(f"{place}: has {len(ids)} entries for {count} examples; the numbers must match")
    return ids


def _sorted(examples: Examples, owner: NDArray[Any], names: NDArray[Any]) -> tuple[Examples, Tensor]:
    """The examples sorted by owner, and where each owner's begin."""
    order = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[order], names, side="right")
    return ViewExamples(examples, torch.from_numpy(order)), torch.from_numpy(np.concatenate([[0], ends]))


def _common_shape(named: list[Part]) -> tuple[int, ...]:
    (first, examples), *rest = named
    like = kind_of(examples)
    for place, other in rest:
        check_like(other, place, like, first)
    return like.shape


def _count_classes(named: Iterable[Part], classes: int | None) -> int:
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int) or classes < 1):
        raise InputError(f"classes = {classes!r}: must be a whole number of at least 1")
    # With the number given, only what is in memory is checked against it.
    stored = (TensorExamples, SeveralExamples)
    read = (part for part in named if classes is None or isinstance(part[1], stored))
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
