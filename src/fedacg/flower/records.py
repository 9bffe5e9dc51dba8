"""What crosses the wire between the server and a node, as Flower's records: orders, replies, announcements.

A node believes its server. The server believes nobody: what it reads here is refused unless it is exactly what was
asked for. How arrays are read safely is in checks.py.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedacg.core import messages
from fedacg.core.round import Round
from fedacg.core.vector import FlatModel, clone
from fedacg.errors import InputError
from fedacg.flower.checks import Refused, Shaped, check_size, read_arrays
from fedacg.simulation.engine import Answer, Evaluation, Job, Task

ARRAYS, ORDER, METRICS, CLIENT = "arrays", "order", "metrics", "client"
"""The names of records."""

_MOST_CLASSES = 10**6
_LONGEST_NAME = 64
_AROUND = 4096
"""Bytes that a reply may have beside its vectors."""


@dataclass(frozen=True)
class Order:
    """What a node is told beside the vectors."""

    federation: str
    """The name under which the node keeps what it keeps."""
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

    def task(self, seed: int) -> Task:
        return Task(Round(self.round, self.clients, self.expected, self.lr, seed), self.client, self.steps)


@dataclass(frozen=True)
class Announcement:
    """What a node says of itself when it is first asked."""

    client: int | str
    """The number of a client of the experiment's split, or the name of a node with data of its own."""
    examples: int
    classes: int
    shape: tuple[int, ...]
    version: str


def pack(message: messages.Message) -> ArrayRecord:
    return ArrayRecord({name: Array(vector.numpy()) for name, vector in message.items()})


def unpack(content: RecordDict) -> dict[str, torch.Tensor]:
    """The vectors of a message from the server."""
    return {name: torch.from_numpy(array.numpy()) for name, array in content.array_records[ARRAYS].items()}


def order(vectors: ArrayRecord, details: Order) -> RecordDict:
    """A message to a node; the same record of vectors can go to all."""
    return RecordDict({ARRAYS: vectors, ORDER: ConfigRecord(asdict(details))})


def read_order(content: RecordDict) -> Order:
    """What the server says; the one word of it that becomes the name of a folder is looked at first."""
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
    """Reads what the clients of a method send for a model, and refuses what they cannot have sent."""

    def __init__(self, job: Job, max_norm: float) -> None:
        flat = FlatModel(clone(job.module), channels_last=job.channels_last)
        self._chain, self._like, self._max_norm = job.method.chain, flat.w, max_norm
        self._expected: Mapping[str, Shaped] = {
            name: Shape(kind.shape, torch.empty(0, dtype=kind.dtype).numpy().dtype)
            for name, kind in job.traffic.up.items()
        }
        self._most = job.traffic.bytes_up + _AROUND

    def read(self, content: RecordDict, task: Task, examples: int) -> Answer:
        """A client's answer to a task; it announced to have so many examples."""
        _check_records(content, arrays=1, metrics=1)
        count, loss = _numbers(content, "num-examples", "loss")
        if count != examples:
            raise Refused(
                f"num-examples is {count:g}, the node announced {examples}; if its data changed, restart it"
            )
        check_size(content, self._most)
        found = read_arrays(content, self._expected)
        message = {name: torch.from_numpy(values.copy()) for name, values in found.items()}
        for name, payload in message.items():
            vector = self._chain.decode(payload, self._like) if messages.is_encoded(name) else payload
            norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
            if not norm <= self._max_norm:
                raise Refused(f"array {name!r} has the norm {norm:g}, at most {self._max_norm:g} is taken")
        return Answer(task.client, examples, task.steps, loss, message, keep={})


def tested(sums: Evaluation) -> RecordDict:
    metrics = MetricRecord({"num-examples": sums.examples, "loss": sums.loss, "correct": sums.correct})
    return RecordDict({METRICS: metrics})


def read_tested(content: RecordDict, max_examples: int) -> Evaluation:
    _check_records(content, metrics=1)
    examples, loss, correct = _numbers(content, "num-examples", "loss", "correct")
    if not 0 <= correct <= examples <= max_examples or int(examples) != examples or int(correct) != correct:
        raise Refused(f"{correct:g} of {examples:g} examples cannot be right; at most {max_examples} are believed")
    return Evaluation(int(examples), loss, int(correct))


def announcement(found: Announcement) -> RecordDict:
    return RecordDict({CLIENT: ConfigRecord({**asdict(found), "shape": list(found.shape)})})


def read_announcement(content: RecordDict, max_examples: int) -> Announcement:
    _check_records(content, client=1)
    match dict(content.config_records[CLIENT]):
        case {
            "client": int() | str() as client,
            "examples": int(examples),
            "classes": int(classes),
            "shape": list(shape),
            "version": str(version),
        } if 0 < examples <= max_examples and 0 <= classes <= _MOST_CLASSES:
            if isinstance(client, str) and not (client.isprintable() and 0 < len(client) <= _LONGEST_NAME):
                raise Refused(f"its name is not one of 1 to {_LONGEST_NAME} printable characters")
            if not all(isinstance(side, int) and side > 0 for side in shape):
                raise Refused("its examples have no shape")
            return Announcement(client, examples, classes, tuple(map(int, shape)), version[:_LONGEST_NAME])
    raise Refused(f"it must tell client, shape, version, examples up to {max_examples} and classes")


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
    return values  # type: ignore[return-value]
