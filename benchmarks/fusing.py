"""When fusing pays: CPU time per local step and client, alone and in a group, by model and batch size.

    python benchmarks/fusing.py [--turns 9] [--convolutions] [MODEL …]

The rule of `engine.fuse = "auto"` derives from this; with `--convolutions` that of small convolutional networks,
which are trained channels-last when alone. It measures CPU time, not seconds, because the machine may have other
work; all variants take turns, and figures are medians over the turns.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from time import process_time

import torch
from torch import nn

from fedacg import methods, models
from fedacg.config.sections import LocalSettings
from fedacg.core.round import Round
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.runs.choices import example_cost
from fedacg.simulation import fused, local
from fedacg.simulation.engine import Task, one_thread


def dense(name: str, width: int, **options: object) -> tuple[nn.Module, tuple[int, ...]]:
    return models.build(name, classes=10, shape=(width,), **options), (width,)


def hidden(width: int, *layers: nn.Module) -> tuple[nn.Module, tuple[int, ...]]:
    """One hidden layer as wide as the input, and something before its ReLU."""
    return nn.Sequential(nn.Linear(width, width), *layers, nn.ReLU(), nn.Linear(width, 10)), (width,)


def convolutional(first: int, second: int, kernel: int, *shape: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Two convolutions with max-pool and ReLU, and a linear head."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((shape[0], first), (first, second)):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.MaxPool2d(2), nn.ReLU()]
    head = nn.Linear(second * (shape[1] // 4) * (shape[2] // 4), 10)
    return nn.Sequential(*layers, nn.Flatten(), head), shape


MODELS = {
    "logistic, 64": partial(dense, "logistic", 64),
    "mlp, 64-64": partial(dense, "mlp", 64, hidden=[64]),
    "mlp, 64-64, dropout": lambda: hidden(64, nn.Dropout(0.5)),
    "mlp, 64-64, BatchNorm": lambda: hidden(64, nn.BatchNorm1d(64)),
    "logistic, 784": partial(dense, "logistic", 784),
    "mlp, 128-128": partial(dense, "mlp", 128, hidden=[128]),
    "mlp, 784-50": partial(dense, "mlp", 784, hidden=[50]),
    "mlp, 784-100": partial(dense, "mlp", 784, hidden=[100]),
    "mlp, 784-200": partial(dense, "mlp", 784, hidden=[200]),
}
CONVOLUTIONAL = {
    "4-8, 3×3, on 1×8×8": partial(convolutional, 4, 8, 3, 1, 8, 8),
    "4-8, 3×3, on 1×16×16": partial(convolutional, 4, 8, 3, 1, 16, 16),
    "8-16, 3×3, on 1×12×12": partial(convolutional, 8, 16, 3, 1, 12, 12),
    "8-16, 3×3, on 1×16×16": partial(convolutional, 8, 16, 3, 1, 16, 16),
    "8-16, 3×3, on 1×28×28": partial(convolutional, 8, 16, 3, 1, 28, 28),
    "6-16, 5×5, on 3×32×32": partial(convolutional, 6, 16, 5, 3, 32, 32),
}
GROUPS = (4, 8, 16, 32, 64)
STEPS = 4


def variants(
    make: Callable[[], tuple[nn.Module, tuple[int, ...]]], batch: int
) -> tuple[str, dict[int, Callable[[], None]]]:
    """The model's size and work, and functions that train so many clients: 1 one after the other, more at once."""
    module, shape = make()
    cost = example_cost(module, torch.zeros(1, *shape))
    alone_flat = FlatModel(clone(module), channels_last=len(shape) == 3)
    flat = FlatModel(module)
    phi, first, method, pipeline = flat.w.clone(), flat.read_buffers(), methods.build("fedavg"), PlainPipeline()
    settings = LocalSettings(steps=STEPS, batch=batch, weight_decay=0.001, clip=10.0)
    rates = [0.01] * STEPS
    examples = [
        TensorExamples(torch.randn(2 * batch, *shape), torch.randint(10, (2 * batch,))) for _ in range(max(GROUPS))
    ]
    round = Round(number=1, clients=max(GROUPS), expected=max(GROUPS), lr=0.01)
    tasks = [Task(round, client, STEPS) for client in range(max(GROUPS))]

    def alone() -> None:
        alone_flat.w.copy_(phi)
        local.train(alone_flat, examples[0], pipeline, method, settings, rates, tasks[0].random)

    def together(group: int) -> None:
        w = phi.expand(group, -1).contiguous()
        seeds, buffers = [task.seed_of for task in tasks[:group]], first.expand(group, -1).clone()
        fused.train(flat, w, examples[:group], pipeline, method, settings, [rates] * group, seeds, buffers)

    size = f"{len(phi):,} | {batch * cost / 1e6:.2f}"
    return size, {1: alone, **{group: (lambda group=group: together(group)) for group in GROUPS}}


def measure(functions: dict[int, Callable[[], None]], turns: int) -> dict[int, float]:
    """Microseconds of CPU per client and step; the first two turns warm up."""
    spent: dict[int, list[float]] = {group: [] for group in functions}
    for turn in range(turns + 2):
        for group, function in functions.items():
            begin = process_time()
            function()
            if turn > 1:
                spent[group].append((process_time() - begin) / group / STEPS * 1e6)
    return {group: median(times) for group, times in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of names, such as dropout; all by default")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--convolutions", action="store_true")
    arguments = parser.parse_args()
    columns = "".join(f" {group} at once |" for group in GROUPS)
    print("| model | parameters | 10⁶ multiplications per step | batch | alone, µs |" + columns)
    print("| --- |" + " ---: |" * (4 + len(GROUPS)))
    for model, make in (CONVOLUTIONAL if arguments.convolutions else MODELS).items():
        if arguments.models and not any(part in model for part in arguments.models):
            continue
        for batch in (10, 50):
            with one_thread():
                size, functions = variants(make, batch)
                spent = measure(functions, arguments.turns)
            cells = "".join(f" {spent[group] / spent[1]:.2f} |" for group in GROUPS)
            print(f"| {model} | {size} | {batch} | {spent[1]:.0f} |{cells}", flush=True)


if __name__ == "__main__":
    main()
