"""The complete app in one process: its ServerApp and ClientApps, with a grid between them that sends bytes."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import override, read_toml
from fedacg.flower import client_app, server_app
from fedacg.runs.build import prepare
from fedacg.runs.runner import Result, play
from support.flower_nodes import packed, unpacked

TINY = """
name = "tiny"
seed = 3
rounds = 4
[data]
clients = 3
alpha = 0.5
[model]
name = "mlp"
hidden = [8]
[cohort]
size = 2
[local]
epochs = 1
batch = 40
lr_decay = 0.9
[engine]
name = "serial"
fuse = "off"
"""


@dataclass
class Node:
    """A SuperNode: its app and config, and what it does wrong."""

    app: ClientApp
    config: dict[str, Any]
    tamper: Callable[[Message], Message] | None = None
    """What becomes of its replies to training messages."""
    silent: bool = False
    state: RecordDict = field(default_factory=RecordDict)
    """What Flower keeps of it from message to message."""


@dataclass
class LoopGrid(Grid):
    """Nodes by id. A message is answered at once, and its reply waits to be pulled."""

    nodes: dict[int, Node]
    down: list[int] = field(default_factory=list)
    """The bytes of every training message."""
    up: list[int] = field(default_factory=list)
    """The bytes of every reply to one."""
    before_train: Callable[[int, int], None] = lambda round, node: None
    """Called with the round and the node before a training message is delivered."""
    _replies: dict[str, tuple[Message, dict[str, bytes]]] = field(default_factory=dict)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [self._replies.pop(identity) for identity in message_ids if identity in self._replies]
        return [unpacked(reply, parcel) for reply, parcel in found]

    def _deliver(self, message: Message) -> str:
        parcel = packed(message)
        arrived = unpacked(message, parcel)
        arrived.metadata.__dict__["_message_id"] = message.object_id  # as Flower does when it has arrived
        training, node_id = arrived.metadata.message_type == MessageType.TRAIN, arrived.metadata.dst_node_id
        if training:
            self.down.append(sum(map(len, parcel.values())))
            told = arrived.content.config_records.get("order")  # the first messages of a sealed round have none
            if told is not None:
                self.before_train(int(told["round"]), node_id)  # type: ignore[arg-type]
        node = self.nodes.get(node_id)
        if node is None or not node.silent:
            reply = self._answer(node, arrived)
            self._replies[message.object_id] = reply, packed(reply)
            if training:
                self.up.append(sum(map(len, packed(reply).values())))
        return message.object_id

    def _answer(self, node: Node | None, message: Message) -> Message:
        if node is None:
            return Message(Error(code=0, reason="the node is gone"), reply_to=message)
        try:
            reply = node.app(message, Context(1, message.metadata.dst_node_id, node.config, node.state, {}))
            if node.tamper and message.metadata.message_type == MessageType.TRAIN:
                return node.tamper(reply)
        except Exception as error:  # as the process that runs a ClientApp does
            return Message(Error(code=0, reason=str(error)), reply_to=message)
        return reply

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError


def node_id(client: int) -> int:
    """Nodes have ids in no order of their clients, as Flower's are."""
    return 1000 - 7 * client


class Trial:
    """An experiment in a folder, to be played as a simulation and by nodes."""

    def __init__(self, folder: Path, *settings: str, text: str = TINY) -> None:
        self.folder, self.out, self.path = folder, folder / "run", folder / "experiment.toml"
        self.path.write_text(text)
        self.experiment = Experiment.parse(override(read_toml(self.path), settings))
        self.path.write_text(self.experiment.to_toml())

    def simulate(self, cohorts: list[list[int]] | None = None) -> Result:
        folder = self.folder / "simulated"
        return play(self.experiment, prepare(self.experiment), folder=folder, cohorts=cohorts)

    def node(self, **config: Any) -> Node:
        return Node(client_app.make(self.path), {"state": str(self.folder / "states"), **config})

    def grid(self, clients: Iterable[int] = (0, 1, 2)) -> LoopGrid:
        return LoopGrid({node_id(client): self.node(**{"partition-id": client}) for client in clients})

    def federate(self, grid: Grid, **config: Any) -> None:
        """Run the ServerApp, as Flower does; `min_replies=2` sets `min-replies`."""
        options = {key.replace("_", "-"): value for key, value in config.items()}
        context = Context(1, 1, {}, RecordDict(), {"out": str(self.out), **options})
        server_app.make(self.path)(grid, context)

    @property
    def digest(self) -> str:
        found: str = json.loads((self.out / "summary.json").read_text())["vector_sha256"]
        return found

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]


def write_clients(folder: Path, sizes: dict[str, int]) -> None:
    """Folders of clients with so many random examples each, three for testing; `b` has two classes of three."""
    for place, (name, size) in enumerate(sizes.items()):
        rng = np.random.default_rng(place)
        (folder / name).mkdir(parents=True)
        for file, count in (("train.npz", size), ("test.npz", 3)):
            x = rng.normal(size=(count, 4)).astype(np.float32)
            np.savez(folder / name / file, x=x, y=np.arange(count) % (2 if name == "b" else 3))


OWN = """
name = "own"
rounds = 3
[data]
name = "folder"
split = "natural"
clients = 0
[model]
name = "logistic"
[cohort]
fraction = 1.0
[local]
epochs = 1
batch = 5
[engine]
name = "serial"
fuse = "off"
"""
