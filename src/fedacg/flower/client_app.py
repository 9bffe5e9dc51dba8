"""The node's side of the complete app: it announces itself, trains on its own examples, and tests if asked.

Examples and states never leave the node. What is sent is the method's upload, made by the same worker that trains
clients in a simulation.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedacg import __version__
from fedacg.config.experiment import Experiment
from fedacg.core.vector import Layout
from fedacg.data import own_tables
from fedacg.data.examples import Examples, FederatedData
from fedacg.engines import Job, one_thread
from fedacg.engines.serial import SerialEngine
from fedacg.errors import InputError, RunError
from fedacg.flower import sealed
from fedacg.flower.deployment import NodeOptions, has_own_data, node_options, read_experiment
from fedacg.flower.records import Announcement, Order, announcement, read_order, tested, unpack, upload
from fedacg.runs.build import load_data, make_job, prepare
from fedacg.runs.client_states import ClientStates
from fedacg.simulation.worker import Worker


@dataclass(frozen=True)
class OnlyClient:
    """The client of this node, under the server's number for it; the others are elsewhere."""

    examples: Examples
    count: int = 1
    """N"""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int, /) -> Examples:
        return self.examples

    def size(self, client: int) -> int:
        return len(self.examples)


@dataclass(frozen=True)
class NodeData:
    """The node's identity and data."""

    client: int | str
    examples: Examples
    data: FederatedData

    def announce(self) -> Announcement:
        data = self.data
        return Announcement(self.client, len(self.examples), len(data.test), data.classes, data.shape, __version__)

    def as_client(self, classes: int, clients: int) -> FederatedData:
        """The data as one client of a federation with this many clients and classes."""
        return replace(self.data, clients=OnlyClient(self.examples, clients), classes=classes)


def read_node_data(experiment: Experiment, options: NodeOptions) -> NodeData:
    if options.partition is None:
        return _own(experiment, options)
    if has_own_data(experiment):
        raise InputError(
            f'node config: partition-id = {options.partition}: the experiment has no split; give data="FOLDER"'
        )
    data = load_data(experiment)
    if options.partitions not in (None, len(data.clients)):
        raise InputError(
            f"node config: num-partitions = {options.partitions}: the experiment has {len(data.clients)} clients"
        )
    if options.partition >= len(data.clients):
        raise InputError(
            f"node config: partition-id = {options.partition}: must be from 0 to {len(data.clients) - 1}"
        )
    return NodeData(options.partition, data.clients[options.partition], data)


def _own(experiment: Experiment, options: NodeOptions) -> NodeData:
    if not has_own_data(experiment):
        raise InputError(
            f"node config: data = {options.data}: is for data.name = folder without data.path; with this "
            "experiment, give partition-id=NUMBER"
        )
    path = Path(options.data).expanduser().resolve()
    if not path.is_dir():
        raise InputError(f"node config: data = {options.data}: there is no such folder")
    whole = own_tables.read_clients([path])
    mine = OnlyClient(whole.train)
    data = FederatedData(whole.name, mine, whole.test, whole.pipeline, whole.classes, whole.shape)
    return NodeData(options.client or path.name, whole.train, data)


def make(path: Path) -> ClientApp:
    """The ClientApp of the experiment in a file."""
    app = ClientApp(mods=[sealed.mod])

    @app.query()
    def announce(message: Message, context: Context) -> Message:
        node = Node(path, context)
        return Message(announcement(node.data.announce()), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node, order = Node(path, context), read_order(message.content)
        job = node.job(order)
        states = node.states(order, job)
        with node.computing():
            kept = _kept(states, order)
            broadcast = unpack(message.content)
            answer = Worker(job).train(order.task(job.seed), broadcast, kept)
            if answer.keep:
                states.write(order.round, order.client, answer.keep)
                states.settle(order.round)
                states.forget(order.visit)
            if sealed.is_sealed(message):
                return Message(sealed.answer_of(job, broadcast, answer.upload, order.cohort), reply_to=message)
            if sealed.sealing(job.method.rule):
                raise RunError("the server asks for a plain update, but this method seals it")
            return Message(upload(answer), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        node, order, engine = Node(path, context), read_order(message.content), SerialEngine()
        with node.computing():
            engine.setup(node.job(order))
            return Message(tested(engine.evaluate(unpack(message.content))), reply_to=message)

    return app


class Node:
    """What a node needs while it serves one message."""

    def __init__(self, path: Path, context: Context) -> None:
        self.experiment: Experiment = read_experiment(path)
        self.options: NodeOptions = node_options(context.node_config)
        self.data: NodeData = read_node_data(self.experiment, self.options)

    def job(self, order: Order) -> Job:
        ingredients = prepare(self.experiment, self.data.as_client(order.classes, order.clients), deployed=True)
        return make_job(self.experiment, ingredients)

    def states(self, order: Order, job: Job) -> ClientStates:
        layout = Layout.of(job.module, job.channels_last)
        return ClientStates(self.options.state_folder / order.federation / str(order.client), layout)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute with the node's threads, and leave the process as it was."""
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.set_num_threads(self.options.threads)
            yield


def _kept(states: ClientStates, order: Order) -> dict[str, torch.Tensor]:
    """What the client kept of the last visit that counted; later states are ignored."""
    states.rewind(order.visit)
    if states.last(order.client) != order.visit:
        raise RunError(
            f"client {order.client}: what it kept in round {order.visit} is no longer at this node; "
            "it can take part again under another name, as a new client"
        )
    return dict(states.read(order.client))
