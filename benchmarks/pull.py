"""Microseconds of a correction of g on a vector as long as `lenet`: added after the backward pass, or g's start.

g is filled with zeros before a backward pass unless it starts from something else, so a start costs what it takes
less the zeros.

    python benchmarks/pull.py [--turns 60]

Other memory is touched before every turn, as by a step's forward and backward passes; figures are medians.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from fedacg.core.vector import trainable
from fedacg.engines import one_thread
from speed import WORKLOADS

MU = 0.01
BLOCK = 2**17


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    turns = parser.parse_args().turns
    size = sum(p.numel() for p in trainable(WORKLOADS["lenet"].module()))
    w, phi, g, scratch = (torch.randn(size) for _ in range(4))
    elsewhere, mu, half = torch.randn(5 * size), torch.tensor(MU), torch.tensor(MU / 2)
    kernel = torch.ops.aten.mse_loss_backward.grad_input
    blocks = list(zip(w.split(BLOCK), phi.split(BLOCK), g.split(BLOCK), strict=True))

    def in_blocks() -> None:
        for w_, phi_, g_ in blocks:
            torch.sub(w_, phi_, out=g_).mul_(mu)

    forms: dict[str, Callable[[], object]] = {
        "start: zeros": lambda: g.zero_(),
        "start: a vector": lambda: g.copy_(phi),
        "start: mu (w - phi), as a difference and a product": lambda: torch.sub(w, phi, out=g).mul_(mu),
        f"the same in blocks of {BLOCK} entries": in_blocks,
        "start: mu (w - phi), in one kernel": lambda: kernel(half, w, phi, 0, grad_input=g),
        "added: a vector": lambda: g.add_(phi),
        "added: mu (w - phi), by scratch memory": lambda: g.add_(torch.sub(w, phi, out=scratch), alpha=MU),
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
        print(f"{name:<52}{1e6 * median(taken):>8.0f} us")


if __name__ == "__main__":
    main()
