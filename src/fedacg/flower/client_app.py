"""The node's side of the complete app: it says who it is, trains on its own examples, and tests on them if asked.

Examples and states never leave the node. What is sent is the method's upload, made by the same worker that trains
clients in a simulation.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedacg.config.experiment import Experiment
from fedacg.core.vector import Layout
from fedacg.engines import Job, one_thread
from fedacg.engines.serial import SerialEngine
from fedacg.errors import RunError
from fedacg.flower.node_data import NodeData, read_node_data
from fedacg.flower.options import NodeOptions, node_options, read_experiment
from fedacg.flower.records import Order, announcement, read_order, tested, unpack, upload
from fedacg.runs.build import make_job, prepare
from fedacg.runs.client_states import ClientStates
from fedacg.simulation.worker import Worker


def make(path: Path) -> ClientApp:
    """The ClientApp of the experiment in a file."""
    app = ClientApp()

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
            answer = Worker(job).train(order.task(job.seed), unpack(message.content), kept)
            if answer.keep:
                states.write(order.round, order.client, answer.keep)
                states.settle(order.round)
                states.forget(order.visit)
            return Message(upload(answer), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        node, order, engine = Node(path, context), read_order(message.content), SerialEngine()
        with node.computing():
            engine.setup(node.job(order))
            return Message(tested(engine.evaluate(unpack(message.content))), reply_to=message)

    return app


class Node:
    """What a node has at hand while it serves one message."""

    def __init__(self, path: Path, context: Context) -> None:
        self.experiment: Experiment = read_experiment(path)
        self.options: NodeOptions = node_options(context.node_config)
        self.data: NodeData = read_node_data(self.experiment, self.options)

    def job(self, order: Order) -> Job:
        ingredients = prepare(self.experiment, self.data.as_client(order.classes, order.clients))
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
    """What the client kept of the last visit that counted; whatever it kept later did not."""
    states.rewind(order.visit)
    if states.last(order.client) != order.visit:
        raise RunError(
            f"client {order.client}: what it kept in round {order.visit} is not at this node any more; "
            "it can go on under another name, as a new client"
        )
    return dict(states.read(order.client))
