"""Microseconds of the pull μ(w − φ) on a vector as long as `lenet`, as it is computed and in cheaper forms.

    python benchmarks/pull.py [--turns 60]

Other memory is touched before every turn, as by a step's forward and backward passes; figures are medians.
"""

import argparse
from statistics import median
from time import perf_counter

import torch

from fedacg.core.vector import trainable
from fedacg.engines import one_thread
from speed import WORKLOADS

MU = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    turns = parser.parse_args().turns
    size = sum(p.numel() for p in trainable(WORKLOADS["lenet"].module()))
    w, phi, g, scratch = torch.randn(4, size).unbind()
    elsewhere = torch.randn(5 * size)
    forms = {
        "w - phi into scratch, and that into g": lambda: g.add_(torch.sub(w, phi, out=scratch), alpha=MU),
        "mu w and -mu phi into g": lambda: g.add_(w, alpha=MU).add_(phi, alpha=-MU),
        "one vector into g": lambda: g.add_(phi, alpha=MU),
    }
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    with one_thread():
        for _ in range(turns):
            for name, compute in forms.items():
                elsewhere.mul_(1.0)
                begin = perf_counter()
                compute()
                seconds[name].append(perf_counter() - begin)
    print(f"{size} entries")
    for name, taken in seconds.items():
        print(f"{name:<40}{1e6 * median(taken):>8.0f} us")


if __name__ == "__main__":
    main()
