"""Users' own data: pairs of arrays, map-style data sets, whole data sets, and what is refused at the door."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedacg.config.sections import DataSettings
from fedacg.data import catalogue
from fedacg.data.examples import Dataset, Examples, FederatedData, labels
from fedacg.data.own_data import dataset, from_pairs
from fedacg.data.own_forms import MappedExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError


def pair(count: int = 5, classes: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.arange(count * 4).view(count, 4).to(dtype), torch.arange(count) % classes


class Squares:
    """A map-style data set of Python numbers and tensors."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([index, index**2], dtype=torch.float32), index % 4


def test_pairs_become_clients_that_fetch_their_own_examples() -> None:
    data = from_pairs([pair(3), pair(5)], pair(2))
    assert [data.clients.size(client) for client in range(len(data.clients))] == [3, 5]
    x, y = data.clients[1].fetch(torch.tensor([4, 0]))
    assert x.tolist() == [[16, 17, 18, 19], [0, 1, 2, 3]]
    assert y.tolist() == [1, 0]
    assert (data.classes, data.shape, len(data.test)) == (3, (4,), 2)


def test_numpy_arrays_also_read_only_ones_and_any_integer_labels_are_taken() -> None:
    x = np.zeros((4, 1, 8, 8), dtype=np.uint8)
    x.setflags(write=False)
    data = from_pairs([(x, np.array([0, 1, 2, 6], dtype=np.int32))], (x, np.array([0, 1, 0, 1], dtype=bool)))
    _, y = data.clients[0].fetch(torch.arange(4))
    assert y.dtype == torch.int64
    assert (data.classes, data.shape) == (7, (1, 8, 8))
    assert data.pipeline(torch.full((1,), 255, dtype=torch.uint8)).item() == 1.0


def test_classes_are_counted_over_clients_and_test() -> None:
    assert from_pairs([pair(classes=2)], pair(classes=5)).classes == 5
    assert from_pairs([pair(classes=2)], pair(classes=5), classes=12).classes == 12


def test_floating_point_labels_are_kept_for_a_loss_of_the_users_own() -> None:
    target = torch.rand(5, 2, dtype=torch.float64)
    data = from_pairs([(pair()[0], target)], (pair()[0], target))
    _, y = data.clients[0].fetch(torch.arange(5))
    assert torch.equal(y, target)
    assert y.dtype == torch.float64
    assert data.classes == 0


def test_token_ids_pass_the_pipeline_as_they_are() -> None:
    data = from_pairs([pair(dtype=torch.int64)], pair(dtype=torch.int64))
    x, _ = data.clients[0].fetch(torch.arange(2))
    assert data.pipeline(x, torch.Generator()) is x
    assert x.dtype == torch.int64
    assert isinstance(data.pipeline, PlainPipeline)


def test_a_map_style_data_set_serves_clients_by_index() -> None:
    clients = [MappedExamples(Squares(), [3, 5, 7]), MappedExamples(Squares(), np.array([0, 2]))]
    data = from_pairs(clients, MappedExamples(Squares(), torch.arange(10, 20)))
    x, y = data.clients[0].fetch(torch.tensor([2, 0]))
    assert x.tolist() == [[7, 49], [3, 9]]
    assert y.tolist() == [3, 3]
    assert y.dtype == torch.int64
    assert (data.clients.size(0), data.clients.size(1), data.classes, data.shape) == (3, 2, 4, (2,))


def test_given_the_number_of_classes_a_mapped_data_set_is_not_read_through() -> None:
    class Counting(Squares):
        read = 0

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            self.read += 1
            return super().__getitem__(index)

    dataset = Counting()
    from_pairs([MappedExamples(dataset, range(20))], MappedExamples(dataset, range(20)), classes=4)
    assert dataset.read == 2  # one example of each, for its shape


@pytest.mark.parametrize(
    ("clients", "test", "options", "message"),
    [
        ([], pair(), {}, "clients: must have at least one client"),
        ([pair(), (pair(3)[0], pair(4)[1])], pair(), {}, r"clients\[1\]: x has 3 examples and y has 4"),
        ([pair()], (pair(3)[0], pair(4)[1]), {}, "test: x has 3 examples and y has 4"),
        ([pair(), pair(0)], pair(), {}, r"clients\[1\]: must have at least one example"),
        ([(pair()[0],)], pair(), {}, r"clients\[0\]: must be a pair \(x, y\), not 1 things"),
        (
            [3],
            pair(),
            {},
            r"clients\[0\]: must be a pair \(x, y\), a data set of pairs, or have __len__ and fetch, not int",
        ),
        ([pair(), (pair()[0], -pair()[1])], pair(), {}, r"clients\[1\]: y has labels from -2 to 0; must be 0 or"),
        (
            [pair(classes=3)],
            pair(),
            {"classes": 2},
            r"clients\[0\]: y has labels from 0 to 2; must be from 0 to 1",
        ),
        ([pair()], pair(), {"classes": 0}, "classes = 0: must be a whole number of at least 1"),
        ([pair(), (pair()[0], torch.rand(5))], pair(), {}, r"clients\[1\]: y must be whole numbers"),
        ([(pair()[0], torch.rand(5))], pair(), {"classes": 3}, r"clients\[0\]: y must be whole numbers"),
        (
            [pair(), (torch.zeros(5, 3), pair()[1])],
            pair(),
            {},
            r"clients\[1\]: x holds torch.float32 of shape \(3,\)",
        ),
        ([pair()], pair(dtype=torch.uint8), {}, "test: x holds torch.uint8"),
        ([(np.array(["a"]), np.array([1]))], pair(), {}, r"clients\[0\]: x: cannot be made a tensor"),
        ([(torch.tensor(1.0), torch.tensor(1))], pair(), {}, r"clients\[0\]: x and y must have a first dimension"),
    ],
)
def test_bad_data_are_refused_with_the_client_that_has_them(
    clients: list[Any], test: Any, options: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        from_pairs(clients, test, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("indices", [[20], [-1], [[1, 2]]])
def test_positions_outside_the_data_set_are_refused(indices: list[int]) -> None:
    with pytest.raises(InputError, match="indices: "):
        MappedExamples(Squares(), indices)


def test_inputs_that_are_no_tensors_are_named() -> None:
    class Images(Squares):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            return object(), 0

    with pytest.raises(InputError, match="dataset: x: cannot be made a tensor"):
        from_pairs([MappedExamples(Images(), [0])], pair())


# Data sets


def numbered(count: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Examples whose input is their position, so that they can be told apart."""
    return torch.arange(count, dtype=torch.float32).view(-1, 1), torch.arange(count) % classes


def inputs(examples: Examples) -> list[int]:
    return [int(x) for x in examples.fetch(torch.arange(len(examples)))[0]]


def natural(whole: Dataset, clients: int, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> FederatedData:
    """The data set dealt as an experiment would have it."""
    monkeypatch.setattr(catalogue.own_data, "from_function", lambda name: whole)
    return catalogue.federate(DataSettings(name="my:data", split="natural", clients=clients), seed)


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        ([10, 9, 10, 2, 9, 10], ("2", "9", "10")),
        (["b", "aa", "b", "a", "aa", "b"], ("a", "aa", "b")),
        (np.array(["b", "aa", "b", "a", "aa", "b"], dtype=object), ("a", "aa", "b")),
        (torch.tensor([10, 9, 10, 2, 9, 10]), ("2", "9", "10")),
    ],
)
def test_examples_are_sorted_owner_after_owner(
    ids: Any, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dataset(numbered(6), numbered(3), clients=ids, test_clients=[ids[0], ids[3], ids[0]])
    assert whole.owners is not None
    assert whole.owners.names == names
    assert (inputs(whole.train), inputs(whole.test)) == ([3, 1, 4, 0, 2, 5], [1, 0, 2])
    assert labels(whole.train).tolist() == [0, 1, 1, 0, 2, 2]
    assert (whole.owners.train.tolist(), whole.owners.test.tolist()) == ([0, 1, 3, 6], [0, 1, 1, 3])
    data = natural(whole, 0, monkeypatch)
    assert [inputs(data.clients[i]) for i in range(3)] == [[3], [1, 4], [0, 2, 5]]


def test_chosen_clients_are_tested_on_their_own_examples_or_on_those_that_are_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids, tests = [i % 5 for i in range(20)], [i % 5 for i in range(10)]
    owned = natural(dataset(numbered(20), numbered(10), clients=ids, test_clients=tests), 2, monkeypatch)
    chosen = [inputs(owned.clients[i])[0] for i in range(2)]
    assert sorted(inputs(owned.test)) == sorted(i for i in range(10) if i % 5 in chosen)
    free = natural(dataset(numbered(20), numbered(10), clients=ids), 2, monkeypatch)
    assert inputs(free.test) == list(range(10))


def test_images_stay_bytes_ids_stay_whole_and_tables_stay_floats() -> None:
    y = np.array([0, 1, 4])
    for x in (
        np.zeros((3, 1, 8, 8), dtype=np.uint8),
        np.zeros((3, 20), dtype=np.int64),
        np.zeros((3, 7), dtype=np.float64),
    ):
        whole = dataset(train=(x, y), test=(x, y), name="mine")
        found, _ = whole.train.fetch(torch.arange(3))
        assert found.numpy().dtype == x.dtype
        assert (whole.name, whole.classes, whole.shape, whole.owners) == ("mine", 5, x.shape[1:], None)
        assert isinstance(whole.pipeline, PlainPipeline)


def test_a_data_set_of_mapped_examples_has_owners_too() -> None:
    train, test = MappedExamples(Squares(), range(6)), MappedExamples(Squares(), [7])
    whole = dataset(train, test, clients=[1, 0, 1, 0, 1, 0], classes=4)
    assert whole.owners is not None
    assert whole.train.fetch(torch.arange(6))[0][:, 0].tolist() == [1, 3, 5, 0, 2, 4]
    assert (whole.owners.train.tolist(), whole.classes, whole.shape) == ([0, 3, 6], 4, (2,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": (numbered(5)[0], numbered(6)[1])}, "train: x has 5 examples and y has 6"),
        ({"test": numbered(0)}, "test: must have at least one example"),
        (
            {"test": (torch.zeros(4, 2), numbered(4)[1])},
            r"test: x holds torch.float32 of shape \(2,\), train .* \(1,\)",
        ),
        (
            {"train": (numbered(6)[0], torch.rand(6))},
            "train: y must be whole numbers \\(classes\\); it is floating",
        ),
        ({"test": (numbered(2)[0], torch.rand(2)), "classes": 3}, "test: y must be whole numbers"),
        (
            {"train": (numbered(6)[0], torch.rand(6)), "test": (numbered(2)[0], torch.rand(2))},
            "train: y must be whole numbers",
        ),
        (
            {"train": (numbered(6)[0], torch.zeros(6, 1, dtype=torch.int64))},
            r"train: y must have one label .* \(1,\)",
        ),
        ({"train": (numbered(6)[0], -numbered(6)[1])}, "train: y has labels from -2 to 0; must be 0 or greater"),
        ({"classes": 2}, "train: y has labels from 0 to 2; must be from 0 to 1"),
        ({"clients": [1, 2]}, "clients: has 2 entries for 6 examples; the numbers must match"),
        ({"clients": [0.5] * 6}, r"clients: must be one row of whole numbers or of texts, not float64 \(6,\)"),
        ({"clients": [["a"]] * 6}, r"clients: must be one row .* not <U1 \(6, 1\)"),
        ({"clients": [None] * 6}, "clients: must be one row of whole numbers or of texts, not object"),
        ({"clients": [1] * 6, "test_clients": [1]}, "test_clients: has 1 entries for 2 examples"),
        ({"clients": [1] * 6, "test_clients": [1, 7]}, "test_clients: 7 has no training examples"),
        ({"clients": [1] * 6, "test_clients": ["1", "1"]}, "test_clients: '1' has no training examples"),
        ({"test_clients": [1, 1]}, "test_clients: are given without clients"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataset(**({"train": numbered(6), "test": numbered(2)} | changes))
