"""The cost of the C library's memory handling: page faults and seconds of `lenet` and `own`, bare and here.

    python benchmarks/faults.py

Each line is a process of its own with one thread, here a worker process. "kept" tells glibc to keep the memory
that was freed, as our workers do.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import torch
from torch import nn

import speed
from fedacg.engines.processes import ProcessEngine
from speed import WORKLOADS, Workload, our_rounds

KEEP = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
LOOPS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("bare", "given back", {}),
    ("bare", "kept", KEEP),
    ("fedacg", "kept", {}),
)
VISITS = 5


def bare(workload: Workload) -> Callable[[], None]:
    """A client's steps as in the bare loops of speed.py."""
    module = workload.module()
    x, y = torch.randn(workload.examples, *workload.shape), torch.randint(10, (workload.examples,))
    sgd = torch.optim.SGD(module.parameters(), lr=0.01, weight_decay=0.001)

    def visit() -> None:
        for _ in range(workload.epochs):
            for index in torch.randperm(len(y)).split(workload.batch):
                sgd.zero_grad()
                nn.functional.cross_entropy(module(x[index]), y[index]).backward()
                nn.utils.clip_grad_norm_(module.parameters(), 10.0)
                sgd.step()

    return visit


def ours(stack: ExitStack, workload: Workload) -> tuple[Callable[[], None], int]:
    """A round of one client in a worker process, and the id of that."""
    engine = ProcessEngine(1)
    with patch.object(speed, "start", lambda settings: engine):
        return our_rounds(stack, workload, 1, "fedavg"), engine.pids[0]


def page_faults(pid: int) -> int:
    """Pages that the system has mapped for a process without reading them from a disk."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def measure(visit: Callable[[], None], pid: int) -> tuple[float, int]:
    """Seconds and page faults of a visit, after a first one."""
    visit()
    faults, begin = page_faults(pid), perf_counter()
    for _ in range(VISITS):
        visit()
    return (perf_counter() - begin) / VISITS, (page_faults(pid) - faults) // VISITS


def main() -> None:
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        network, loop, _ = sys.argv[1:]
        workload = replace(WORKLOADS[network], cohort=1)
        with ExitStack() as stack:
            visit, pid = ours(stack, workload) if loop == "fedacg" else (bare(workload), os.getpid())
            seconds, faults = measure(visit, pid)
        print(f"| {' | '.join(sys.argv[1:])} | {seconds:.3f} | {faults:,} |")
        return
    print("| network | loop | freed memory | seconds per client | page faults |")
    print("| --- | --- | --- | ---: | ---: |", flush=True)
    for network in ("lenet", "own"):
        for loop, memory, environment in LOOPS:
            command = [sys.executable, __file__, network, loop, memory]
            subprocess.run(command, env=os.environ | environment, check=True)


if __name__ == "__main__":
    main()
