"""Milliseconds of CPU time per test example for forward passes of different sizes, with one thread.

    python benchmarks/evaluation.py [--turns 3] [lenet] [cnn] [resnet18] [logistic]

Sizes take turns, and each figure is the least of its turns.
"""

import argparse
from time import process_time

import torch

from fedacg import models
from fedacg.core.vector import FlatModel
from fedacg.simulation.engine import one_thread

MODELS = {"lenet": (3, 32, 32), "cnn": (3, 32, 32), "resnet18": (3, 32, 32), "logistic": (64,)}
"""The shape of an example."""
SIZES = (10, 25, 50, 100, 250, 500, 1000)


def seconds(flat: FlatModel, x: torch.Tensor, size: int) -> float:
    """CPU time of one look at all examples."""
    begin = process_time()
    with torch.no_grad():
        for part in torch.split(x, size):
            flat.module(flat.prepare(part))
    return process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    print("| model |" + "".join(f" {size} |" for size in SIZES) + "\n| --- |" + " ---: |" * len(SIZES))
    for name in arguments.models:
        module = models.build(name, classes=10, shape=MODELS[name]).eval()
        flat = FlatModel(module, channels_last=bool(module.channels_last))
        x = torch.randn(max(SIZES), *MODELS[name])
        with one_thread():
            seconds(flat, x, max(SIZES))
            turns = [[seconds(flat, x, size) for size in SIZES] for _ in range(arguments.turns)]
        best = [min(turn[place] for turn in turns) for place in range(len(SIZES))]
        print(f"| {name} |" + "".join(f" {1000 * spent / len(x):.4f} |" for spent in best), flush=True)


if __name__ == "__main__":
    main()
