"""What every engine does: train a cohort's clients and evaluate a model, with the same result to the bit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol

import torch
from torch import nn

from fedacg.config.sections import LocalSettings
from fedacg.core.devices import Device, count
from fedacg.core.messages import Message
from fedacg.data.examples import FederatedData
from fedacg.errors import InputError
from fedacg.methods.method import Method


@dataclass(frozen=True)
class Job:
    """What every worker must have to serve any client of a run; given to it once."""

    module: nn.Module
    channels_last: bool
    data: FederatedData
    method: Method
    local: LocalSettings
    seed: int
    evaluate_batch: int
    group: int = 1
    """Clients that are trained at once, at most; 1 trains one after the other."""
    device: Device = "cpu"


@dataclass(frozen=True)
class Task:
    """One client's work in one round."""

    round: int
    client: int
    steps: int
    """K, the local steps to be done."""


@dataclass(frozen=True)
class Answer:
    """A client's upload, as it crosses the link, with the scalars that travel beside it."""

    client: int
    examples: int
    steps: int
    loss: float
    upload: Message
    keep: Message
    """What the client keeps until its next visit; it stays with the client and is not counted."""


@dataclass(frozen=True)
class Answers:
    """What a group of clients answers: each vector of a message is a matrix with a row for every client."""

    tasks: Sequence[Task]
    examples: Sequence[int]
    losses: Sequence[float]
    upload: Message
    keep: Message

    @classmethod
    def of_one(cls, task: Task, answer: Answer) -> "Answers":
        """The answer of a client that was trained alone."""
        return cls([task], [answer.examples], [answer.loss], _as_row(answer.upload), _as_row(answer.keep))

    def __iter__(self) -> Iterator[Answer]:
        uploads, kept = self._rows(self.upload), self._rows(self.keep)
        for task, examples, loss, upload, keep in zip(
            self.tasks, self.examples, self.losses, uploads, kept, strict=True
        ):
            yield Answer(task.client, examples, task.steps, loss, upload, keep)

    def _rows(self, message: Message) -> Iterator[Message]:
        """The messages of the clients, one by one."""
        columns = [matrix.unbind() for matrix in message.values()]
        return (dict(zip(message, [c[row] for c in columns], strict=True)) for row in range(len(self.tasks)))


def _as_row(message: Message) -> Message:
    return {name: vector.unsqueeze(0) for name, vector in message.items()}


@dataclass(frozen=True)
class Evaluation:
    """Sums over test examples; those of disjoint parts add up."""

    examples: int
    loss: float
    correct: int

    def __add__(self, other: "Evaluation") -> "Evaluation":
        return Evaluation(self.examples + other.examples, self.loss + other.loss, self.correct + other.correct)


ClientMemory = Callable[[int], Message]
"""What a client kept of its last visit, nothing at its first."""


NOBODY: Mapping[int, str] = MappingProxyType({})
"""Whose answer is lost where every client that is asked answers."""


class Engine(Protocol):
    """Workers that serve one job at a time."""

    @property
    def lost(self) -> Mapping[int, str]:
        """Clients that the last `train` was to serve and that will not answer, and why; known when it returns."""
        ...

    def setup(self, job: Job) -> None:
        """Take on a job; may be called again for the next one."""
        ...

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Iterator[Answers]:
        """Answers in the order of the tasks, without the lost, by group; valid until the next is asked for."""
        ...

    def evaluate(self, model: Message) -> Evaluation:
        """Sums over all test examples there are for a model given as `theta` and `buffers`."""
        ...

    def close(self) -> None: ...


def groups(tasks: Sequence[Task], largest: int) -> list[Sequence[Task]]:
    """A round's tasks in groups that are trained at once, as even as can be.

    They follow from the places in the cohort alone, so that no result depends on the number of workers.
    """
    count = -(-len(tasks) // largest)
    bounds = [len(tasks) * place // count for place in range(count + 1)] if count else []
    return [tasks[first:last] for first, last in pairwise(bounds)]


def chunks(examples: int, size: int) -> list[tuple[int, int]]:
    """The test set in parts of a fixed size, so that sums do not depend on the number of workers."""
    return [(first, min(first + size, examples)) for first in range(0, examples, size)]


def total(parts: Sequence[Evaluation]) -> Evaluation:
    """The sum of evaluations, in order."""
    result = Evaluation(0, 0.0, 0)
    for part in parts:
        result = result + part
    return result


def check_device(name: Device) -> None:
    """Refuse a device that this machine does not have."""
    if not count(name):
        missing = f"torch {torch.__version__} finds no such device on this machine; 'cpu' always works"
        raise InputError(f"engine.device = {name!r}: {missing}")


class one_thread:
    """Compute with a single thread inside the block, as workers do, and as before after it."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)
