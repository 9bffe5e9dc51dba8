"""Messages between the server and a node, as Flower's records: orders, replies, announcements.

A node trusts its server. The server trusts nobody: a reply is refused unless it is exactly what was asked for.
checks.py reads arrays safely.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedacg.core.round import Message, Round, is_encoded
from fedacg.core.vector import FlatModel, clone
from fedacg.errors import InputError
from fedacg.flower.checks import MAX_EXAMPLES, Measured, Refused, Shaped, check_size, plain, read_arrays
from fedacg.simulation.engine import Answer, Job, Task
from fedacg.simulation.scoring import Evaluation

ARRAYS, ORDER, METRICS, CLIENT = "arrays", "order", "metrics", "client"
"""The names of records."""

_MOST_CLASSES = 10**6
_LONGEST_NAME = 64
_MOST_SIDES = 8
_MOST_INPUTS = 10**8
"""Most numbers in an input that are accepted."""
_MOST_LOSS = 1e6
"""Largest mean loss, of either sign, that is accepted."""
_AROUND = 4096
"""Bytes that a reply may have beside its vectors."""


@dataclass(frozen=True)
class Order:
    """What a node receives beside the vectors."""

    federation: str
    """The name under which the node keeps its state."""
    clients: int
    """N"""
    client: int
    classes: int
    round: int = 0
    expected: int = 0
    """M"""
    lr: float = 0.0
    """η that the round starts with"""
    steps: int = 0
    """K"""
    visit: int = 0
    """The round of the client's last visit that the server has counted, 0 for none."""
    cohort: int = 0
    """The number of clients asked in the round; sent only if their updates are sealed together."""

    def task(self, seed: int) -> Task:
        return Task(Round(self.round, self.clients, self.expected, self.lr, seed), self.client, self.steps)


@dataclass(frozen=True)
class Announcement:
    """A node's announcement when it is first asked."""

    client: int | str
    """The number of a client of the experiment's split, or the name of a node with data of its own."""
    examples: int
    tests: int
    """How many test examples it has."""
    classes: int
    shape: tuple[int, ...]
    version: str


def pack(message: Message) -> ArrayRecord:
    return ArrayRecord({name: Array(vector.numpy()) for name, vector in message.items()})


def unpack(content: RecordDict) -> dict[str, torch.Tensor]:
    """The vectors of a message from the server."""
    return {name: torch.from_numpy(array.numpy()) for name, array in content.array_records[ARRAYS].items()}


def order(vectors: ArrayRecord, details: Order) -> RecordDict:
    """A message to a node; the same record of vectors can go to all."""
    return RecordDict({ARRAYS: vectors, ORDER: ConfigRecord(asdict(details))})


def read_order(content: RecordDict) -> Order:
    """The server's order; the string that becomes a folder name is checked first."""
    found = Order(**content.config_records[ORDER])  # type: ignore[arg-type]
    if not found.federation.isalnum():
        raise InputError(f"federation = {found.federation!r}: must be letters and digits")
    return found


def upload(answer: Answer) -> RecordDict:
    metrics = MetricRecord({"num-examples": answer.examples, "loss": answer.loss})
    return RecordDict({ARRAYS: pack(answer.upload), METRICS: metrics})


@dataclass(frozen=True)
class Shape:
    """An array that is expected."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class UploadReader:
    """Reads the uploads of a method's clients, and refuses impossible ones."""

    def __init__(self, job: Job, max_norm: float) -> None:
        flat = FlatModel(clone(job.module), channels_last=job.channels_last)
        self._chain, self._like, self._max_norm = job.method.chain, flat.w, max_norm
        self._expected: Mapping[str, Shaped] = {
            name: Shape(kind.shape, torch.empty(0, dtype=kind.dtype).numpy().dtype)
            for name, kind in job.traffic.up.items()
        }
        self._most = job.traffic.bytes_up + _AROUND

    def read(self, content: RecordDict, task: Task, examples: int) -> tuple[Answer, dict[str, Measured]]:
        """A client's answer to a task, and the norms of its vectors; `examples` is the number it announced."""
        _check_records(content, arrays=1, metrics=1)
        check_size(content, self._most)
        count, loss = _numbers(content, "num-examples", "loss")
        if count != examples:
            raise Refused(
                f"num-examples is {count:g}, the node announced {examples}; if its data changed, restart it"
            )
        _check_loss(loss, 1)
        found = read_arrays(content, self._expected)
        message = {name: torch.from_numpy(values.copy()) for name, values in found.items()}
        norms = {}
        for name, payload in message.items():
            vector = self._chain.decode(payload, self._like) if is_encoded(name) else payload
            norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
            if not norm <= self._max_norm:
                raise Refused(f"array {name!r} has the norm {norm:g}, at most {self._max_norm:g} is accepted")
            side = name not in ("delta", "buffers")
            norms[norm_of(name)] = Measured(norm, float(max(task.steps, 1)), either_way=side)
        return Answer(task.client, examples, task.steps, loss, message, keep={}), norms


def norm_of(name: str) -> str:
    """What the norm of an array is called."""
    return f"the norm of array {name!r}"


def tested(sums: Evaluation) -> RecordDict:
    metrics = MetricRecord({"num-examples": sums.examples, "loss": sums.loss, "correct": sums.correct})
    return RecordDict({METRICS: metrics})


def read_tested(content: RecordDict, tests: int) -> Evaluation:
    """A node's results on its test examples; `tests` is the number it announced."""
    _check_records(content, metrics=1)
    check_size(content, _AROUND)
    examples, loss, correct = _numbers(content, "num-examples", "loss", "correct")
    if examples != tests:
        raise Refused(
            f"num-examples is {examples:g}, the node announced {tests} tests; if its data changed, restart it"
        )
    if not 0 <= correct <= examples or int(correct) != correct:
        raise Refused(f"{correct:g} of {examples:g} examples cannot be right")
    _check_loss(loss, tests)
    return Evaluation(tests, loss, int(correct), tests)


def _check_loss(loss: float, examples: int) -> None:
    if abs(loss) > _MOST_LOSS * examples:
        raise Refused(f"loss is {loss:g}, at most {_MOST_LOSS:g} per example is accepted")


def announcement(found: Announcement) -> RecordDict:
    return RecordDict({CLIENT: ConfigRecord({**asdict(found), "shape": list(found.shape)})})


def read_announcement(content: RecordDict) -> Announcement:
    """A node's announcement, checked by itself; whether it fits the federation is checked elsewhere."""
    _check_records(content, client=1)
    check_size(content, _AROUND)
    said = dict(content.config_records[CLIENT])
    client, shape, version = said.get("client"), said.get("shape"), said.get("version")
    most = {"examples": MAX_EXAMPLES, "tests": MAX_EXAMPLES, "classes": _MOST_CLASSES}
    counts = [said[name] for name in most if _is_whole(said.get(name), most[name])]
    if type(client) not in (int, str) or len(counts) < len(most) or not isinstance(shape, list):
        raise Refused(
            f"it must announce client, shape, version, examples and tests up to {MAX_EXAMPLES:g}, and classes"
        )
    if not isinstance(version, str):
        raise Refused("its version is not a string")
    examples, tests, classes = counts
    if examples == 0:
        raise Refused("it has no examples")
    if isinstance(client, str) and not (client.isprintable() and 0 < len(client) <= _LONGEST_NAME):
        raise Refused(f"its name is not one of 1 to {_LONGEST_NAME} printable characters")
    if len(shape) > _MOST_SIDES or not all(_is_whole(side, math.inf) and side for side in shape):
        raise Refused(f"the shape of its examples is not one to {_MOST_SIDES} positive numbers")
    if math.prod(shape) > _MOST_INPUTS:  # type: ignore[operator]
        raise Refused(f"its inputs have the shape {shape}; at most {_MOST_INPUTS:g} numbers are accepted")
    return Announcement(client, examples, tests, classes, tuple(shape), plain(version, _LONGEST_NAME))  # type: ignore[arg-type]


def _is_whole(value: object, most: float) -> bool:
    """Whether something is a whole number from 0; True and False are none."""
    return type(value) is int and 0 <= value <= most


def _check_records(content: RecordDict, *, arrays: int = 0, metrics: int = 0, client: int = 0) -> None:
    """What is in a reply must be the records that were asked for, by their names and kinds."""
    kinds = ((content.array_records, ARRAYS, arrays), (content.metric_records, METRICS, metrics))
    for records, name, count in (*kinds, (content.config_records, CLIENT, client)):
        if list(records) != [name] * count:
            found = ", ".join(sorted(content))[:_LONGEST_NAME]
            raise Refused(f"it has the records {found!r}, which are not what was asked for")


def _numbers(content: RecordDict, *names: str) -> list[float]:
    """The metrics of a reply: these, each one finite number."""
    record = content.metric_records[METRICS]
    if set(record) != set(names):
        raise Refused(f"its metrics are not {', '.join(names)}")
    values = [record[name] for name in names]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise Refused(f"{name} is {str(value)[:_LONGEST_NAME]}, expected one finite number")
    return [*map(float, values)]  # type: ignore[arg-type]
