"""Users' own data: pairs of arrays, map-style data sets, and what is refused at the door."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedacg.data.own import MappedExamples, from_pairs
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
    assert data.pipeline(x).dtype == torch.int64
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
        ([3], pair(), {}, r"clients\[0\]: must be a pair \(x, y\) or have __len__ and fetch, not int"),
        ([pair(), (pair()[0], -pair()[1])], pair(), {}, r"clients\[1\]: y has labels from -2 to 0; must be 0 or"),
        (
            [pair(classes=3)],
            pair(),
            {"classes": 2},
            r"clients\[0\]: y has labels from 0 to 2; must be from 0 to 1",
        ),
        ([pair()], pair(), {"classes": 0}, "classes = 0: must be at least 1"),
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
