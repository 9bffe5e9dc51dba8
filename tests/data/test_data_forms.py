"""Data as people have them, through a whole run: the same bits as plain pairs, in this process and in workers."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import fedacg
from fedacg import InputError, Result
from fedacg.data import LazyClients, by_client, columns

SIZES = (8, 5, 12, 9)


def pairs(sizes: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(3)
    inputs = [torch.randn(n, 4, generator=source) for n in sizes]
    return [(x, (x.sum(1) > 0).long()) for x in inputs]


PAIRS, TEST = pairs(), pairs((30,))[0]
X, Y = torch.cat([x for x, _ in PAIRS]), torch.cat([y for _, y in PAIRS])
OWNER = [f"u{client}" for client, size in enumerate(SIZES) for _ in range(size)]
COLUMNS = [f"f{number}" for number in range(4)]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def run(clients: Any, test: Any = TEST, **options: Any) -> Result:
    settings: dict[str, Any] = {
        "model": seeded(lambda: nn.Linear(4, 2)),
        "rounds": 3,
        "participation": 0.5,
        "local_epochs": 1,
        "batch_size": 4,
    }
    return fedacg.run(clients=clients, test=test, **(settings | options))


class Rows(Dataset[tuple[Tensor, int]]):
    """A map-style data set of single examples."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return X[index], int(Y[index])


class Records(Dataset[dict[str, Any]]):
    """A map-style data set whose items are dictionaries."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": X[index], "label": int(Y[index]), "user": OWNER[index]}


class Arrow:
    """What a Hugging Face data set can do: its columns have names, a list of positions gives columns."""

    column_names = ("x", "label", "user")

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, key: Any) -> Any:
        whole = {"x": X.tolist(), "label": Y.tolist(), "user": OWNER}
        if isinstance(key, str):
            return whole[key]
        return {name: [column[position] for position in key] for name, column in whole.items()}


class Shelf:
    """A sequence of clients that are made when they are asked for."""

    def __len__(self) -> int:
        return len(PAIRS)

    def __getitem__(self, client: int) -> tuple[Tensor, Tensor]:
        if not 0 <= client < len(PAIRS):
            raise IndexError(client)
        return PAIRS[client]


def spans() -> Iterator[range]:
    ends = np.cumsum(SIZES)
    return (range(int(end) - size, int(end)) for end, size in zip(ends, SIZES, strict=True))


def frame() -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(X.numpy(), columns=COLUMNS)
    return table.assign(label=Y.numpy(), user=OWNER)


FORMS: dict[str, Callable[[], Any]] = {
    "torch TensorDatasets": lambda: [TensorDataset(x, y) for x, y in PAIRS],
    "Subsets of a TensorDataset": lambda: [Subset(TensorDataset(X, Y), list(span)) for span in spans()],
    "Subsets of a Dataset": lambda: [Subset(Rows(), list(span)) for span in spans()],
    "a Subset of a Subset": lambda: [Subset(Subset(Rows(), range(len(Y))), list(span)) for span in spans()],
    "a dictionary": lambda: {f"u{client}": pair for client, pair in enumerate(PAIRS)},
    "a frame": lambda: by_client(frame(), client="user", inputs=COLUMNS, label="label"),
    "columns in a dictionary": lambda: by_client(
        {"x": X, "label": Y, "user": OWNER}, client="user", inputs="x", label="label"
    ),
    "rows that are dictionaries": lambda: by_client(Records(), client="user", inputs="x", label="label"),
    "what can do what Hugging Face's can": lambda: by_client(Arrow(), client="user", inputs="x", label="label"),
    "a sequence that loads": Shelf,
    "lazy clients": lambda: LazyClients(len(PAIRS), lambda client: PAIRS[client], SIZES),
    "lazy clients of unknown size": lambda: LazyClients(len(PAIRS), lambda client: PAIRS[client]),
}


@pytest.fixture(scope="module")
def plain() -> Result:
    return run(PAIRS)


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_bits_of_plain_pairs(make: Callable[[], Any], plain: Result) -> None:
    found = run(make())
    assert torch.equal(found.vector, plain.vector)
    assert found.history.accuracy == plain.history.accuracy


def test_every_form_reaches_worker_processes_with_the_same_bits(plain: Result) -> None:
    """Forms that workers must be sent in different ways share one start."""
    for form in ("Subsets of a Dataset", "what can do what Hugging Face's can", "lazy clients of unknown size"):
        assert torch.equal(run(FORMS[form](), workers=2).vector, plain.vector), form


def test_a_real_hugging_face_data_set_gives_the_same_bits(plain: Result) -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    table = datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist(), "user": OWNER})
    clients = by_client(table, client="user", inputs="x", label="label")
    test = columns(
        datasets.Dataset.from_dict({"x": TEST[0].tolist(), "l": TEST[1].tolist()}), inputs="x", label="l"
    )
    assert list(clients) == ["u0", "u1", "u2", "u3"]
    assert torch.equal(run(clients, test).vector, plain.vector)
    assert torch.equal(run(clients, test, workers=2).vector, plain.vector)


# Several inputs


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 3), nn.Linear(5, 2)

    def forward(self, ids: Tensor, extra: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([self.table(ids).mean(1), extra], dim=1))
        return out


class ByPlace(ByName):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return super().forward(ids=first, extra=second)


def several() -> list[tuple[Tensor, Tensor, Tensor]]:
    source = torch.Generator().manual_seed(5)
    return [
        (torch.randint(0, 7, (n, 6), generator=source), torch.randn(n, 2, generator=source), torch.arange(n) % 2)
        for n in SIZES
    ]


@pytest.mark.parametrize("method", ["fedacg", "fedntd", "mime"])
@pytest.mark.parametrize("workers", [0, 2])
def test_several_inputs_by_name_and_by_place_are_the_same(method: str, workers: int) -> None:
    by_name = [({"ids": ids, "extra": extra}, y) for ids, extra, y in several()]
    by_place = [((ids, extra), y) for ids, extra, y in several()]
    one = run(by_name, by_name[0], model=seeded(ByName), method=method, workers=workers)
    other = run(by_place, by_place[0], model=seeded(ByPlace), method=method)
    assert torch.equal(one.vector, other.vector)
    assert one.history[-1].test_loss == other.history[-1].test_loss


def test_columns_become_the_arguments_of_a_model() -> None:
    ids, extra, y = (torch.cat(parts) for parts in zip(*several(), strict=True))
    table = {"ids": ids, "a": extra[:, 0], "b": extra[:, 1], "y": y, "user": OWNER}
    found = by_client(table, client="user", inputs={"ids": "ids", "extra": ["a", "b"]}, label="y")
    expected = [({"ids": ids, "extra": extra}, y) for ids, extra, y in several()]
    model = seeded(ByName)
    assert torch.equal(run(found, found["u0"], model=model).vector, run(expected, expected[0], model=model).vector)


def test_many_clients_at_once_leave_several_inputs_alone() -> None:
    many = [((ids, extra), y) for ids, extra, y in several() * 8]
    run(many, many[0], model=seeded(ByPlace), participation=1.0, rounds=1)
    with pytest.raises(InputError, match=r"engine\.fuse = 'on': data: the inputs are several tensors"):
        run(many, many[0], model=seeded(ByPlace), participation=1.0, fuse="on")


# Lazy clients and no test set


def test_lazy_clients_are_never_all_in_memory() -> None:
    alive: set[int] = set()
    most = 0

    class Mine:
        def __init__(self, client: int) -> None:
            nonlocal most
            self.client = client
            alive.add(client)
            most = max(most, len(alive))

        def __len__(self) -> int:
            return SIZES[self.client]

        def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
            x, y = PAIRS[self.client]
            return x[index], y[index]

        def __del__(self) -> None:
            alive.discard(self.client)

    run(LazyClients(len(PAIRS), Mine), participation=1.0)
    assert most <= 2


def test_lazy_clients_of_known_size_and_classes_are_loaded_only_when_they_take_part() -> None:
    loaded: list[int] = []

    def load(client: int) -> tuple[Tensor, Tensor]:
        loaded.append(client)
        return PAIRS[client % len(PAIRS)]

    sizes = [SIZES[client % len(SIZES)] for client in range(1000)]
    run(LazyClients(1000, load, sizes), classes=2, participation=0.002, rounds=2)
    assert len(set(loaded)) < 10


def test_without_a_test_set_nothing_is_evaluated_and_the_bits_are_the_same(plain: Result) -> None:
    found = run(PAIRS, None)
    assert torch.equal(found.vector, plain.vector)
    assert found.history.accuracy == []
    assert found.history[-1].test_loss is None


def test_a_test_set_by_client_is_tested_on_as_a_whole(plain: Result) -> None:
    parts = {client: (TEST[0][client::4], TEST[1][client::4]) for client in range(4)}
    found = run(PAIRS, parts)
    assert torch.equal(found.vector, plain.vector)
    assert found.history.accuracy == pytest.approx(plain.history.accuracy)


# What is refused


class Triples(Rows):
    def __getitem__(self, index: int) -> Any:
        return X[index], X[index], 0


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


CE_SHAPE = (X[:4], torch.zeros(4, 1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("clients", "test", "options", "words"),
    [
        ([DataLoader(TensorDataset(X, Y))], TEST, {}, r"clients\[0\]: is a DataLoader.*give its .dataset"),
        ([Stream()], TEST, {}, r"clients\[0\]: must be a pair .* not Stream"),
        ([X], TEST, {}, r"clients\[0\]: must be a pair .* not Tensor"),
        (X, TEST, {}, "clients: is a Tensor; must be a list"),
        ([Records()], TEST, {}, r"clients\[0\]: its items are dictionaries; .*fedacg.data.columns"),
        ([Triples()], TEST, {}, r"clients\[0\]: its items are 3 things; must be pairs"),
        (Arrow(), TEST, {}, "clients: is a Arrow; .*fedacg.data.by_client"),
        ({"a": {"x": X, "y": Y}}, TEST, {}, r"clients\['a'\]: is a dict; .*fedacg.data.columns"),
        ({"a": (X, Y[:3])}, TEST, {}, r"clients\['a'\]: x has 34 examples and y has 3"),
        ([({"ids": X, "extra": X[:2]}, Y)], TEST, {}, r"clients\[0\]: x has 2 examples and y has 34"),
        ([({"two words": X}, Y)], TEST, {}, "is not an argument name of a model"),
        ([({}, Y)], TEST, {}, "x has no arrays in it"),
        ({1: PAIRS[0], "1": PAIRS[1]}, TEST, {}, "clients: two are called '1'"),
        (
            [PAIRS[0], (X.double(), Y)],
            TEST,
            {},
            r"clients\[1\]: x holds torch.float64 of shape \(4,\), clients\[0\]",
        ),
        ([PAIRS[0], CE_SHAPE], TEST, {}, r"clients\[1\]: a label has shape \(1,\), one of clients\[0\] \(\)"),
        ([PAIRS[0], ((X, X), Y)], TEST, {}, r"clients\[1\]: x holds \(torch.float32"),
        ([CE_SHAPE], CE_SHAPE, {}, r"loss: cannot compare the model's outputs, torch.float32 of shape \(2,\)"),
        ([(X[:, :3], Y)], None, {}, r"model: Linear cannot take the inputs, torch.float32 of shape \(3,\)"),
        ([({"ids": X}, Y)], None, {}, "model: Linear cannot take the inputs, {ids: torch.float32"),
        (PAIRS, {}, {}, "test: is an empty dictionary"),
        (PAIRS, {9: TEST}, {}, "test: 9 is not one of the clients"),
        (PAIRS, TEST, {"classes": 1}, r"clients\[0\]: y has labels from 0 to 1; must be from 0 to 0"),
        (LazyClients(2, lambda _: (X, Y[:1])), TEST, {}, r"clients\[0\]: x has 34 examples and y has 1"),
        (LazyClients(4, lambda c: (X[:, : 4 - c // 3], Y)), TEST, {}, r"clients\[3\]: x holds"),
        (LazyClients(2, lambda _: (X, Y), [34, 3]), TEST, {}, r"clients\[1\]: has 34 examples, but sizes says 3"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_round(
    clients: Any, test: Any, options: dict[str, Any], words: str
) -> None:
    played: list[object] = []
    with pytest.raises(InputError, match=words):
        run(clients, test, on_round=played.append, **options)
    assert not played


@pytest.mark.parametrize(
    ("table", "inputs", "label", "words"),
    [
        ({"x": X, "y": Y}, "z", "y", "has no column 'z'; there are x, y"),
        ({"x": X, "y": Y}, [], "y", "inputs = "),
        ({"x": ["a", "b"], "y": [0, 1]}, "x", "y", "column 'x' holds texts"),
        ({"x": [1.0, float("nan")], "y": [0, 1]}, ["x"], "y", r"column 'x' has 1 gaps \(NaN\)"),
        ({"x": [1.0, None], "y": [0, 1]}, ["x"], "y", "column 'x' holds object or has gaps"),
        ({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}, "x", "y", "column 'x': its cells do not have the same shape"),
        ({"x": X, "y": Y}, ["x"], "y", "column 'x' must hold one number per row"),
        (7, "x", "y", "table: is a int"),
        (Rows(), "x", "y", "its rows are of type tuple; must be dictionaries"),
        (Arrow(), "z", "label", "has no column 'z'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table: Any, inputs: Any, label: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        columns(table, inputs=inputs, label=label)


def test_clients_in_a_table_must_all_have_names() -> None:
    with pytest.raises(InputError, match="column 'user' has rows without a client"):
        by_client({"x": X[:2], "y": Y[:2], "user": ["a", None]}, client="user", inputs="x", label="y")
    with pytest.raises(InputError, match="sizes: has 2 entries for 3 clients"):
        LazyClients(3, PAIRS.__getitem__, [1, 2])
    with pytest.raises(InputError, match=r"sizes\[1\] = 0: must be at least 1"):
        LazyClients(2, PAIRS.__getitem__, [1, 0])
