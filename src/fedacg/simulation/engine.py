"""The interface of engines: train a cohort's clients and evaluate a model, with the same result to the bit.

The round loop knows an engine by what is here; the engines themselves are in fedacg.engines.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedacg.config.participation import FailureSettings
from fedacg.config.sections import LocalSettings
from fedacg.core.round import Kinds, Message, Round, kind_bytes
from fedacg.core.tensors import Device, count_devices
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import Clients, Examples, FederatedData, TensorExamples, feed, labels
from fedacg.errors import InputError
from fedacg.methods.method import Method
from fedacg.methods.rules import State
from fedacg.models.networks import StagedModel
from fedacg.simulation.scoring import Aim, Evaluation

Held = Literal["test", "validation"]
"""Parts of the data that no client trains on."""
See = Callable[[Tensor, Tensor], None]
"""A function that gets the outputs and labels of each chunk in turn."""


@dataclass(frozen=True)
class Measured:
    """What single clients are measured on, and what they fine-tune on before; as many of both."""

    test: Clients
    train: Clients


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to serve any client of a run; given to it once."""

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
    measured: Measured | None = None
    """None where single clients are not measured."""
    failures: FailureSettings = field(default_factory=FailureSettings)
    """What bad clients do."""

    def first_state(self, theta: Tensor) -> State:
        """The server's vectors before the first round."""
        rule = self.method.rule
        return {**rule.init(theta), **rule.extras(Network(self), theta)}

    def held(self, part: Held) -> Examples:
        """The examples of a part that no client trains on."""
        return (self.data.test if part == "test" else self.data.validation) or TensorExamples(*torch.empty(2, 0))

    @cached_property
    def aim(self) -> Aim:
        """The learning task, judged by the loss and the first chunk of labels."""
        known = next((held for part in get_args(Held) if len(held := self.held(part))), self.data.clients[0])
        sample = labels(known, torch.arange(min(len(known), self.evaluate_batch)))
        return Aim.of(self.method.empirical.function, sample)

    @cached_property
    def traffic(self) -> "Traffic":
        """What one client sends, receives and keeps, found in a rehearsal of one step."""
        from fedacg.simulation.rehearsal import rehearse

        return rehearse(self)


class Network:
    """What a server rule may know of a job's model, computed on demand; a `methods.rules.Network`."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def classes(self) -> int:
        return self._job.data.classes

    @cached_property
    def width(self) -> int:
        """The number of features the head takes, found with one example."""
        data = self._job.data
        client = next(c for c in range(len(data.clients)) if data.clients.size(c))
        x, _ = data.clients[client].fetch(torch.arange(1))
        inputs = feed(self._flat, data.pipeline, x)
        if not isinstance(inputs, Tensor):
            raise InputError("data: inputs are several tensors, but a model made of stages takes one")
        with torch.no_grad():
            return self._staged.features(inputs).shape[1]

    def head(self, vector: Tensor, features: Tensor) -> Tensor:
        if next(self._staged.head.buffers(), None) is not None:
            raise InputError("model: its head has buffers, but with this method the server uses clients' heads")
        parameters = {
            name.removeprefix("head."): part
            for name, part in self._flat.unfold(vector).items()
            if name.startswith("head.")
        }
        logits: Tensor = functional_call(self._staged.head, parameters, (features,))
        return logits

    @cached_property
    def _flat(self) -> FlatModel:
        return FlatModel(clone(self._job.module).eval(), channels_last=self._job.channels_last)

    @property
    def _staged(self) -> StagedModel:
        assert isinstance(self._flat.module, StagedModel)
        return self._flat.module


@dataclass(frozen=True)
class Traffic:
    """The messages of one client's visit: what tensors they are made of."""

    down: Kinds
    up: Kinds
    first: Kinds
    """What is sent in the first exchange of a round, nothing where there is none."""
    kept: Kinds
    """What a client keeps from visit to visit; it stays with the client and is not counted."""

    @property
    def bytes_down(self) -> int:
        return kind_bytes(self.down)

    @property
    def bytes_up(self) -> int:
        return kind_bytes(self.up) + kind_bytes(self.first)


class Task(NamedTuple):
    """One client's work in one round; a tuple, since they are made and sent by the hundred."""

    round: Round
    client: int
    steps: int
    """K, the local steps to be done; 0 asks for the full gradient at φ and nothing else."""
    measure: Literal["", "client", "test", "validation"] = ""
    """Whether φ, or the client's own model, is to be measured on what the job measures clients on, once more after
    `steps` of fine-tuning, or on a part that no client trains on. Nothing comes of it but figures."""
    bad: bool = False
    """Whether the client is one of the bad ones (attacks.py)."""

    def random(self, purpose: str) -> torch.Generator:
        """A stream of randomness of this visit."""
        return self.round.random(purpose, self.client)

    def seed_of(self, purpose: str) -> int:
        """Where that stream starts, for a generator that serves one stream after the other."""
        return self.round.seed_of(purpose, self.client)


@dataclass(frozen=True)
class Answer:
    """A client's upload, as it crosses the network, with the scalars that travel beside it."""

    client: int
    examples: int
    steps: int
    loss: float
    upload: Message
    keep: Message
    """What the client keeps until its next visit; it stays with the client and is not counted."""


@dataclass(frozen=True)
class Answers:
    """What a group of clients answers: each tensor of a message is a matrix with a row for every client."""

    tasks: Sequence[Task]
    examples: Sequence[int]
    losses: Sequence[float]
    upload: Message
    keep: Message

    @classmethod
    def of_one(cls, task: Task, answer: Answer) -> "Answers":
        """The answer of a client that was trained alone."""
        return cls([task], [answer.examples], [answer.loss], as_row(answer.upload), as_row(answer.keep))

    def ordered(self, index: Tensor) -> "Answers":
        """The same with its clients in another order."""
        places = index.tolist()
        return Answers(
            [self.tasks[place] for place in places],
            [self.examples[place] for place in places],
            [self.losses[place] for place in places],
            upload={name: rows[index] for name, rows in self.upload.items()},
            keep={name: rows[index] for name, rows in self.keep.items()},
        )

    def __iter__(self) -> Iterator[Answer]:
        uploads, kept = self.rows(self.upload), self.rows(self.keep)
        for task, examples, loss, upload, keep in zip(
            self.tasks, self.examples, self.losses, uploads, kept, strict=True
        ):
            yield Answer(task.client, examples, task.steps, loss, upload, keep)

    def rows(self, message: Message) -> Iterator[Message]:
        """The messages of the clients, one by one."""
        columns = [matrix.unbind() for matrix in message.values()]
        return (dict(zip(message, [c[row] for c in columns], strict=True)) for row in range(len(self.tasks)))


def as_row(message: Message) -> Message:
    """A client's message as that of a group of one."""
    return {name: tensor.unsqueeze(0) for name, tensor in message.items()}


def to_device(message: Message, device: torch.device) -> Message:
    """A message with its tensors on a device."""
    return {name: tensor.to(device) for name, tensor in message.items()}


ClientMemory = Callable[[int], Message]
"""What a client kept of its last visit, nothing at its first."""


def nothing_kept(client: int) -> Message:
    """For work that uses nothing of what clients kept, such as a first exchange."""
    return {}


def recall(memory: ClientMemory, tasks: Sequence[Task]) -> Message:
    """What the clients of a group kept, a row each; zeros stand for a client that kept nothing of a name."""
    each = [memory(task.client) for task in tasks]
    if len(each) == 1:
        return as_row(each[0])
    known = {name: tensor for message in each for name, tensor in message.items()}
    found = {}
    for name, like in known.items():
        nothing = torch.zeros_like(like)
        found[name] = torch.stack([message.get(name, nothing) for message in each])
    return found


@dataclass(frozen=True)
class Training:
    """A round's training: its answers come as they are asked for, in the order of the tasks and by group."""

    answers: Iterator[Answers]
    """Without the lost; each is valid until the next is asked for."""
    lost: Mapping[int, str] = field(default_factory=dict)
    """Clients that will not answer, and why."""
    stand_ins: bool = False
    """Whether the answers stand for a sum that is all that is known, and are nobody's own."""


class Engine(Protocol):
    """Workers that serve one job at a time."""

    def setup(self, job: Job) -> None:
        """Take on a job; may be called again for the next one."""
        ...

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Training:
        """Have the clients of these tasks do their work."""
        ...

    def evaluate(self, model: Message, part: Held = "test", see: See | None = None) -> Evaluation:
        """Sums over a part of the data that is held out, for a model given as `theta` and `buffers`.

        `see` is shown outputs and labels, in this process and in the order of the examples whoever computed them.
        """
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
    """A set in parts of a fixed size, so that sums do not depend on the number of workers."""
    return [(first, min(first + size, examples)) for first in range(0, examples, size)]


def check_device(name: Device) -> None:
    """Refuse a device that this machine does not have."""
    if not count_devices(name):
        missing = f"torch {torch.__version__} finds no such device on this machine; 'cpu' always works"
        raise InputError(f"engine.device = {name!r}: {missing}")


class one_thread:
    """Compute with a single thread inside the block, as workers do, and as before after it."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)
