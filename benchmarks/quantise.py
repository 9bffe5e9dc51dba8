"""Seconds to quantise and to restore an upload of ResNet-18's size, beside a client's training time.

    python benchmarks/quantise.py [--batch 10] [--steps 3]

One thread. A client of the paper's large setting takes 50 steps of batch 10, of the moderate one of batch 50.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy

from fedacg.core.vector import FlatModel
from fedacg.engines import one_thread
from fedacg.methods.quantise import BITS, Quantise
from fedacg.methods.upload import Chain, Memory
from fedacg.models import build

STEPS = 50


def seconds(action: Callable[[], object], times: int) -> float:
    """The median of so many runs, after one to warm up."""
    action()
    found = []
    for _ in range(times):
        start = perf_counter()
        action()
        found.append(perf_counter() - start)
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    with one_thread():
        flat = FlatModel(build("resnet18", classes=10))
        x, y = torch.randn(arguments.batch, 3, 32, 32), torch.randint(10, (arguments.batch,))

        def step() -> None:
            flat.g.zero_()
            torch.autograd.backward(cross_entropy(flat.module(x), y))
            flat.w.add_(flat.g, alpha=-1e-4)

        training = STEPS * seconds(step, arguments.steps)
        print(f"training, {STEPS} steps of batch {arguments.batch}: {training:.1f} s")
        vector, random = torch.randn(flat.w.numel()), torch.Generator().manual_seed(0)
        print(f"{'bits':>4}{'MB':>8}{'encode s':>10}{'decode s':>10}{'of training':>13}")
        for bits in BITS:
            chain = Chain((Quantise(bits),))
            payload = chain.encode(vector, Memory(), random)
            encode = seconds(lambda chain=chain: chain.encode(vector, Memory(), random), 5)
            decode = seconds(lambda chain=chain, payload=payload: chain.decode(payload, vector), 5)
            share = (encode + decode) / training
            print(f"{bits:>4}{len(payload) / 1e6:>8.2f}{encode:>10.3f}{decode:>10.3f}{share:>12.2%}")


if __name__ == "__main__":
    main()
