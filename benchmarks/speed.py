"""Seconds per round here against the same SGD steps in bare PyTorch loops, in as many one-threaded processes.

    python benchmarks/speed.py [--workers 2] [--rounds 15] [--engine ray] [--methods …] [lenet] [own] …

The bare loops have their data ready in floating point, start every client from the same model, and do nothing
but `torch.optim.SGD`: no sampling, no messages, no aggregation. A round here is everything but evaluation.
`own` is `lenet` as a user writes it. With `--engine`, FedAvg with another engine is timed in place of the methods.
All variants take turns, round by round, because the machine's speed drifts; ratios are medians over the turns.
"""

import argparse
import multiprocessing
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedacg import methods, models
from fedacg.config.experiment import Experiment
from fedacg.data.examples import FederatedData, SplitClients, TensorExamples
from fedacg.data.pipelines import ImagePipeline, PlainPipeline
from fedacg.engines import start
from fedacg.runs.build import Ingredients, plan
from fedacg.runs.choices import choose_layout
from fedacg.runs.client_states import ROOM, ClientStates
from fedacg.simulation.engine import one_thread

METHODS = ("fedavg", "fedprox", "fedavgm", "fedacg")


@dataclass(frozen=True)
class Workload:
    """Clients of equal size with random data, a model and the local work of a round."""

    model: str
    clients: int
    examples: int
    shape: tuple[int, ...]
    cohort: int
    epochs: int
    batch: int

    def module(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            return LeNet() if self.model == "own" else models.build(self.model, classes=10, shape=self.shape)

    def data(self) -> FederatedData:
        count = self.clients * self.examples
        source = torch.Generator().manual_seed(0)
        images = len(self.shape) == 3
        x = (
            torch.randint(256, (count, *self.shape), generator=source, dtype=torch.uint8)
            if images
            else torch.randn(count, *self.shape, generator=source)
        )
        y = torch.randint(10, (count,), generator=source)
        channels = self.shape[0]
        pipeline = ImagePipeline((0.5,) * channels, (0.25,) * channels) if images else PlainPipeline()
        offsets = torch.arange(0, count + 1, self.examples)
        clients = SplitClients(TensorExamples(x, y), torch.arange(count), offsets)
        test = TensorExamples(x[: self.examples].clone(), y[: self.examples].clone())
        return FederatedData("random", clients, test, pipeline, 10, self.shape)


class LeNet(nn.Module):
    """The catalogue's `lenet` for 3×32×32 as a user writes it, without a thought for layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 5)
        self.conv2 = nn.Conv2d(64, 64, 5)
        self.fc1 = nn.Linear(64 * 5 * 5, 384)
        self.fc2 = nn.Linear(384, 192)
        self.fc3 = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


WORKLOADS = {
    "lenet": Workload("lenet", 500, 100, (3, 32, 32), cohort=10, epochs=5, batch=10),
    "own": Workload("own", 500, 100, (3, 32, 32), cohort=10, epochs=5, batch=10),
    "cnn": Workload("cnn", 500, 100, (3, 32, 32), cohort=10, epochs=5, batch=10),
    "logistic": Workload("logistic", 1000, 20, (64,), cohort=100, epochs=1, batch=10),
    "resnet18": Workload("resnet18", 20, 100, (3, 32, 32), cohort=2, epochs=1, batch=50),
}
LR = 0.01
CLIP = 10.0
DECAY = 0.001


def bare_loop(connection: Connection, workload: Workload, clients: int) -> None:
    """A process that trains this many clients, one after the other, on request."""
    torch.set_num_threads(1)
    module = workload.module()
    beginning = [p.detach().clone() for p in module.parameters()]
    x = torch.randn(workload.examples, *workload.shape)
    y = torch.randint(10, (workload.examples,))
    connection.send(None)
    while connection.recv():
        for _ in range(clients):
            with torch.no_grad():
                for p, value in zip(module.parameters(), beginning, strict=True):
                    p.copy_(value)
            sgd = torch.optim.SGD(module.parameters(), lr=LR, weight_decay=DECAY)
            for _ in range(workload.epochs):
                for index in torch.randperm(len(y)).split(workload.batch):
                    sgd.zero_grad()
                    nn.functional.cross_entropy(module(x[index]), y[index]).backward()
                    nn.utils.clip_grad_norm_(module.parameters(), CLIP)
                    sgd.step()
        connection.send(None)


def bare_rounds(stack: ExitStack, workload: Workload, workers: int) -> Callable[[], None]:
    """A function that has the bare loops do one round."""
    context = multiprocessing.get_context("spawn")
    connections = []
    for worker in range(workers):
        ours, theirs = context.Pipe()
        share = len(range(worker, workload.cohort, workers))
        process = context.Process(target=bare_loop, args=(theirs, workload, share), daemon=True)
        process.start()
        stack.callback(process.kill)
        connections.append(ours)
    for connection in connections:
        connection.recv()

    def play() -> None:
        for connection in connections:
            connection.send(True)
        for connection in connections:
            connection.recv()

    return play


def our_rounds(
    stack: ExitStack,
    workload: Workload,
    workers: int,
    method: str,
    engine: str = "processes",
    device: str = "cpu",
) -> Callable[[], None]:
    """A function that runs one round here."""
    experiment = Experiment.parse(
        {
            "rounds": 10**6,
            "method": {"name": method},
            "cohort": {"size": workload.cohort},
            "local": {
                "epochs": workload.epochs,
                "batch": workload.batch,
                "lr": LR,
                "weight_decay": DECAY,
                "clip": CLIP,
            },
            "evaluate": {"every": 10**6},
            "engine": {"name": engine, "workers": workers, "device": device},
        }
    )
    module = workload.module()
    data = workload.data()
    layout = choose_layout(experiment, module, data)
    ingredients = Ingredients(module, layout, data, methods.build(method))
    started = start(experiment.engine)
    stack.callback(started.close)
    memory = ClientStates(Path(stack.enter_context(TemporaryDirectory())), room=ROOM)
    rounds = plan(experiment, ingredients).federation(started, memory, []).run()

    def play() -> None:
        memory.forget(next(rounds).round)  # as in a run without a folder

    return play


def measure(variants: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds per round of each variant, turn by turn; the first turn warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, play in variants.items():
            begin = perf_counter()
            play()
            if turn:
                seconds[name].append(perf_counter() - begin)
    return seconds


def ratio(seconds: dict[str, list[float]], one: str, other: str) -> float:
    return median(a / b for a, b in zip(seconds[one], seconds[other], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--engine", help="time FedAvg with worker processes and with this engine")
    parser.add_argument("--methods", default=",".join(METHODS), help="beside FedAvg, with which all are compared")
    arguments = parser.parse_args()
    names = list(dict.fromkeys(["fedavg", *arguments.methods.split(",")]))
    print(f"{'workload':<10}{'variant':<10}{'s / round':>10}{'of bare':>9}{'of fedavg':>11}")
    for name in arguments.workloads or WORKLOADS:
        workload = WORKLOADS[name]
        with ExitStack() as stack, one_thread():
            variants = {"bare": bare_rounds(stack, workload, arguments.workers)}
            for method in names[:1] if arguments.engine else names:
                variants[method] = our_rounds(stack, workload, arguments.workers, method)
            if arguments.engine:
                engine = arguments.engine
                variants[engine] = our_rounds(stack, workload, arguments.workers, names[0], engine)
            seconds = measure(variants, arguments.rounds)
        for variant in variants:
            of_bare, of_fedavg = ratio(seconds, variant, "bare"), ratio(seconds, variant, "fedavg")
            print(f"{name:<10}{variant:<10}{median(seconds[variant]):>10.4f}{of_bare:>9.2f}{of_fedavg:>11.3f}")


if __name__ == "__main__":
    main()
