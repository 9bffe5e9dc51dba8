"""Validation data: what is held out of what, that nobody trains on it, and what is made of it."""

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedacg
from fedacg import InputError
from fedacg.config.sections import DataSettings
from fedacg.data.examples import FederatedData, ListedClients, SplitClients, TensorExamples, labels
from fedacg.data.held_out import JoinedExamples, hold_out
from fedacg.data.own_data import from_pairs
from fedacg.data.pipelines import PlainPipeline


def numbered(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    """Clients, and last the test set, whose examples are numbers of their own."""
    whole = torch.arange(sum(sizes), dtype=torch.float32)
    return [(part.unsqueeze(1), torch.zeros(len(part), dtype=torch.int64)) for part in whole.split(sizes)]


def every(examples: Any) -> list[float]:
    found: list[float] = examples.fetch(torch.arange(len(examples)))[0].flatten().tolist()
    return found


def held(data: FederatedData, fraction: float, of: str = "examples", seed: int = 0) -> FederatedData:
    return hold_out(data, DataSettings(validation=fraction, validation_from=of), seed)  # type: ignore[arg-type]


SIZES = (10, 1, 20, 5, 40)


def data() -> FederatedData:
    *clients, test = numbered(*SIZES, 30)
    return from_pairs(clients, test)


def test_every_client_gives_a_part_of_its_examples() -> None:
    parted = held(data(), 0.2)
    assert [parted.clients.size(c) for c in range(5)] == [8, 1, 16, 4, 32]
    assert parted.validation is not None
    trained = [every(parted.clients[c]) for c in range(5)]
    assert [len(each) for each in trained] == [8, 1, 16, 4, 32]
    chosen = every(parted.validation)
    assert sorted([*chain(*trained), *chosen]) == list(range(76)), "each example is on one side"
    assert chosen == sorted(chosen)
    assert every(parted.test) == every(data().test)


def test_some_clients_are_held_out_whole() -> None:
    parted = held(data(), 0.4, "clients")
    assert parted.validation is not None
    assert len(parted.clients) == 3
    trained = [every(parted.clients[c]) for c in range(3)]
    assert [parted.clients.size(c) for c in range(3)] == [len(each) for each in trained]
    assert sorted([*chain(*trained), *every(parted.validation)]) == list(range(76))
    whole = [every(data().clients[c]) for c in range(5)]
    assert all(each in whole for each in trained)


def test_every_client_keeps_an_example() -> None:
    """Nine tenths of 10, 1, 20, 5 and 40 examples are 9, 1, 18, 5 and 36: two clients would have none left."""
    assert [held(data(), 0.9).clients.size(client) for client in range(5)] == [1, 1, 2, 1, 4]


def test_names_and_own_tests_follow_the_clients_that_are_left() -> None:
    own = ListedClients([TensorExamples(*pair) for pair in numbered(1, 2, 3, 4, 5)])
    parted = held(replace(data(), names=tuple("abcde"), own_tests=own), 0.4, "clients")
    sizes = [parted.clients.size(client) for client in range(3)]
    assert [parted.name_of(client) for client in range(3)] == ["abcde"[SIZES.index(size)] for size in sizes]
    assert parted.own_tests is not None
    assert [parted.own_tests.size(client) for client in range(3)] == [1 + SIZES.index(size) for size in sizes]


def test_a_part_of_the_test_set_is_held_out() -> None:
    parted = held(data(), 0.3, "test")
    assert parted.validation is not None
    assert (len(parted.validation), len(parted.test)) == (9, 21)
    assert sorted([*every(parted.validation), *every(parted.test)]) == every(data().test)
    assert [parted.clients.size(c) for c in range(5)] == list(SIZES)


@pytest.mark.parametrize("of", ["examples", "clients", "test"])
def test_the_seed_says_what_is_held_out(of: str) -> None:
    found = [held(data(), 0.4, of, seed).validation for seed in (0, 0, 1)]
    first, again, other = (every(each) for each in found)
    assert first == again != other


def test_clients_of_a_split_give_theirs_as_one_view() -> None:
    base = TensorExamples(torch.arange(12.0).unsqueeze(1), torch.arange(12) % 3)
    order, offsets = torch.randperm(12, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 4, 12])
    split = FederatedData("own", SplitClients(base, order, offsets), base, PlainPipeline(), 3, (1,))
    parted = held(split, 0.25)
    assert parted.validation is not None
    assert not isinstance(parted.validation, JoinedExamples)
    trained = [every(parted.clients[c]) for c in range(2)]
    assert sorted([*chain(*trained), *every(parted.validation)]) == list(range(12))
    assert labels(parted.validation).tolist() == [int(x) % 3 for x in every(parted.validation)]


def test_joined_examples_are_fetched_in_any_order() -> None:
    parts = [TensorExamples(x, x[:, 0].long()) for x, _ in numbered(3, 2, 4)]
    joined = JoinedExamples(parts)
    index = torch.tensor([8, 0, 4, 3, 7, 0])
    x, y = joined.fetch(index)
    assert x.flatten().tolist() == y.tolist() == labels(joined, index).tolist() == index.tolist()
    assert ListedClients(parts).size(0) == 3


@pytest.mark.parametrize(
    ("fraction", "of", "error"),
    [
        (0.01, "examples", "no client has enough examples to give one"),
        (0.05, "clients", r"there are too few clients \(5\)"),
        (0.01, "test", r"the test set has too few examples \(30\)"),
    ],
)
def test_a_part_that_is_nothing_is_refused(fraction: float, of: str, error: str) -> None:
    with pytest.raises(InputError, match=f"data.validation = {fraction}: {error}"):
        held(data(), fraction, of)


def test_a_side_without_validation_is_refused() -> None:
    with pytest.raises(InputError, match="validation_from = 'test': has no effect"):
        fedacg.run(**problem(validation_from="test"))
    with pytest.raises(InputError, match="validation = 1"):
        fedacg.run(**problem(validation=1.0))


# In a run.


def problem(**settings: Any) -> dict[str, Any]:
    source = torch.Generator().manual_seed(5)
    inputs = [torch.randn(n, 4, generator=source) for n in (18, 19, 20, 21, 53)]
    pairs = [(x, x[:, :3].argmax(dim=1)) for x in inputs]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
    own = {"model": net, "clients": pairs[:-1], "test": pairs[-1]}
    return {**own, "rounds": 4, "cohort_size": 2, "local_steps": 2, **settings}


def test_validation_is_evaluated_when_the_test_set_is() -> None:
    seen: list[int] = []

    def size(outputs: Tensor, y: Tensor) -> int:
        seen.append(len(y))
        return len(y)

    settings = problem(validation=0.25, evaluate_every=2)
    result = fedacg.run(**settings, metrics={"size": size})
    names = {"test/size", "validation/accuracy", "validation/loss", "validation/size"}
    assert [set(m.scores or {}) for m in result.history] == [set(), names, set(), names]
    assert seen == [53, 20, 53, 20]
    model, x, y = (
        result.model,
        *held(from_pairs(settings["clients"], settings["test"]), 0.25).validation.fetch(  # type: ignore[union-attr]
            torch.arange(20)
        ),
    )
    with torch.no_grad():
        expected = float((model(x).argmax(dim=1) == y).double().mean())
    assert result.history[-1].score("validation/accuracy") == pytest.approx(expected)


def test_the_test_set_can_wait_for_the_end() -> None:
    result = fedacg.run(**problem(validation=0.25, evaluate={"test": "end"}))
    assert [m.test_loss is None for m in result.history] == [True, True, True, False]
    assert len(result.history.series("validation/accuracy")) == 4
    every_round = fedacg.run(**problem(validation=0.25))
    assert result.history[-1].test_accuracy == every_round.history[-1].test_accuracy
    assert torch.equal(result.vector, every_round.vector)


def test_workers_hold_out_the_same() -> None:
    settings = problem(validation=0.25, evaluate={"batch": 7})
    alone, many = fedacg.run(**settings), fedacg.run(**settings, workers=2)
    assert torch.equal(alone.vector, many.vector)
    assert [m.scores for m in alone.history] == [m.scores for m in many.history]


def test_what_is_held_out_of_the_test_set_changes_no_training() -> None:
    plain, parted = fedacg.run(**problem()), fedacg.run(**problem(validation=0.5, validation_from="test"))
    assert torch.equal(plain.vector, parted.vector)
    less = fedacg.run(**problem(validation=0.25))
    assert not torch.equal(plain.vector, less.vector)
    assert less.history[0].examples < plain.history[0].examples
