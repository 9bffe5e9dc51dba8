"""The cost of the C library's memory handling: page faults and seconds of `lenet` in bare loops and here.

    python benchmarks/faults.py

Each line is a process of its own, one thread. "kept" tells glibc to keep the memory that was freed.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

import torch
from torch import nn

from speed import WORKLOADS, our_rounds

KEPT = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
WORKLOAD = replace(WORKLOADS["lenet"], cohort=1)
VISITS = 5


def bare() -> Callable[[], None]:
    """A client's steps as in the bare loops of speed.py."""
    module = WORKLOAD.module()
    x, y = torch.randn(WORKLOAD.examples, *WORKLOAD.shape), torch.randint(10, (WORKLOAD.examples,))
    sgd = torch.optim.SGD(module.parameters(), lr=0.01, weight_decay=0.001)

    def visit() -> None:
        for _ in range(WORKLOAD.epochs):
            for index in torch.randperm(len(y)).split(WORKLOAD.batch):
                sgd.zero_grad()
                nn.functional.cross_entropy(module(x[index]), y[index]).backward()
                nn.utils.clip_grad_norm_(module.parameters(), 10.0)
                sgd.step()

    return visit


def measure(visit: Callable[[], None]) -> tuple[float, int]:
    """Seconds and page faults of a visit, after a first one."""
    visit()
    faults, begin = getrusage(RUSAGE_SELF).ru_minflt, perf_counter()
    for _ in range(VISITS):
        visit()
    return (perf_counter() - begin) / VISITS, (getrusage(RUSAGE_SELF).ru_minflt - faults) // VISITS


def main() -> None:
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        with ExitStack() as stack:
            ours = sys.argv[1] == "fedacg"
            visit = our_rounds(stack, WORKLOAD, 1, "fedavg", "serial") if ours else bare()
            seconds, faults = measure(visit)
        print(f"| {' | '.join(sys.argv[1:])} | {seconds:.3f} | {faults:,} |")
        return
    print("| loop | freed memory | seconds per client | page faults |\n| --- | --- | ---: | ---: |", flush=True)
    for loop in ("bare", "fedacg"):
        for memory, environment in (("given back", {}), ("kept", KEPT)):
            subprocess.run([sys.executable, __file__, loop, memory], env=os.environ | environment, check=True)


if __name__ == "__main__":
    main()
