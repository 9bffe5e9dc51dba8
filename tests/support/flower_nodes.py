"""A federation of Flower in one process: a grid whose nodes are functions, and whose messages cross as bytes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
Node = Callable[[Message], Message]
"""What a node makes of a message it gets."""

# Messages are signed with the task that makes them, which Flower's runtime would have set.
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def arrays(message: Message) -> dict[str, NDArray[Any]]:
    """The arrays of a message."""
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def answer(message: Message, arrays: Arrays, **metrics: Any) -> Message:
    """A reply as clients usually make it."""
    metrics = {"num-examples": 1} | {name.replace("_", "-"): value for name, value in metrics.items()}
    return Message(RecordDict({"arrays": record(arrays), "metrics": MetricRecord(metrics)}), reply_to=message)


def replying(values: Arrays, **metrics: Any) -> Node:
    """A node that always sends the same arrays, and says of its evaluation that the loss is 1."""

    def node(message: Message) -> Message:
        if message.metadata.message_type == MessageType.TRAIN:
            return answer(message, values, **metrics)
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}), reply_to=message)

    return node


def failing(message: Message) -> Message:
    """A node whose app has raised."""
    return Message(Error(code=0, reason="the client app raised"), reply_to=message)


@dataclass
class Nodes(Grid):
    """Node 101 answers as `nodes[0]` says, 102 as `nodes[1]`, and so on; replies come in that order."""

    nodes: Sequence[Node]
    sent: list[Message] = field(default_factory=list)
    """Everything the server has sent."""

    def get_node_ids(self) -> Iterable[int]:
        return range(101, 101 + len(self.nodes))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in sorted(messages, key=lambda message: message.metadata.dst_node_id):
            arrived = unpacked(message, packed(message))
            self.sent.append(arrived)
            reply = self.nodes[arrived.metadata.dst_node_id - 101](arrived)
            replies.append(unpacked(reply, packed(reply)))
        return replies

    def trained(self, number: int) -> dict[str, NDArray[Any]]:
        """The arrays that the nodes were sent in a training round, counted from 1."""
        rounds = [arrays(m) for m in self.sent if m.metadata.message_type == MessageType.TRAIN]
        return rounds[:: len(self.nodes)][number - 1]

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError


def packed(message: Message) -> dict[str, bytes]:
    """The objects that a message crosses the wire as, by their ids."""
    return {key: thing.deflate() for key, thing in get_all_nested_objects(message).items()}


def unpacked(message: Message, parcel: Mapping[str, bytes]) -> Message:
    arrived = inflate_object_from_contents(message.object_id, dict(parcel))
    assert isinstance(arrived, Message)
    return arrived
