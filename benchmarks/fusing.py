"""When fusing pays: CPU time per local step and client, alone and in a group, by model and batch size.

    python benchmarks/fusing.py [--turns 9]

The rule of `engine.fuse = "auto"` derives from this. It measures CPU time and not seconds, because the machine may
have other work; all variants take turns, and figures are medians over the turns.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import process_time

import torch

from fedacg import methods, models
from fedacg.config.sections import LocalSettings
from fedacg.core.round import Round
from fedacg.core.vector import FlatModel
from fedacg.data.examples import TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.simulation import fused, local
from fedacg.simulation.engine import Task, one_thread

MODELS: dict[str, tuple[str, int, dict[str, object]]] = {
    "logistic, 64": ("logistic", 64, {}),
    "mlp, 64-64": ("mlp", 64, {"hidden": [64]}),
    "logistic, 784": ("logistic", 784, {}),
    "mlp, 128-128": ("mlp", 128, {"hidden": [128]}),
    "mlp, 784-50": ("mlp", 784, {"hidden": [50]}),
    "mlp, 784-100": ("mlp", 784, {"hidden": [100]}),
    "mlp, 784-200": ("mlp", 784, {"hidden": [200]}),
}
GROUPS = (4, 8, 16, 32, 64)
STEPS = 4


def variants(model: str, batch: int) -> tuple[int, dict[int, Callable[[], None]]]:
    """The model's size, and functions that train clients: one after the other for 1, more at once."""
    name, width, options = MODELS[model]
    flat = FlatModel(models.build(name, classes=10, shape=(width,), **options))
    phi, method, pipeline = flat.w.clone(), methods.build("fedavg"), PlainPipeline()
    settings = LocalSettings(steps=STEPS, batch=batch, weight_decay=0.001, clip=10.0)
    rates = [0.01] * STEPS
    examples = [
        TensorExamples(torch.randn(2 * batch, width), torch.randint(10, (2 * batch,))) for _ in range(max(GROUPS))
    ]
    round = Round(number=1, clients=max(GROUPS), expected=max(GROUPS), lr=0.01)
    randoms = [Task(round, client, STEPS).random for client in range(max(GROUPS))]

    def alone() -> None:
        flat.w.copy_(phi)
        local.train(flat, examples[0], pipeline, method, settings, rates, randoms[0])

    def together(group: int) -> None:
        w = phi.expand(group, -1).contiguous()
        fused.train(flat, w, examples[:group], pipeline, method, settings, [rates] * group, randoms[:group])

    return len(phi), {1: alone, **{group: (lambda group=group: together(group)) for group in GROUPS}}


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
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    print("| model | parameters | batch | alone, µs |" + "".join(f" {group} at once |" for group in GROUPS))
    print("| --- |" + " ---: |" * (3 + len(GROUPS)))
    for model in MODELS:
        for batch in (10, 50):
            with one_thread():
                parameters, functions = variants(model, batch)
                spent = measure(functions, turns)
            cells = "".join(f" {spent[group] / spent[1]:.2f} |" for group in GROUPS)
            print(f"| {model} | {parameters:,} | {batch} | {spent[1]:.0f} |{cells}", flush=True)


if __name__ == "__main__":
    main()
