"""Fills in a table for a machine with a GPU: rounds on the device against the CPU, with several workers on it.

    python benchmarks/gpu.py [--device cuda] [--rounds 5] [lenet] [cnn] …

Prints Markdown. Where PyTorch finds no such device it says so, and ends with exit code 2. The CPU is timed with
one worker per core, the device with one, two and four workers that share it. Seconds are medians of whole rounds
without evaluation, the first left out; the last column is examples per second of all local steps.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from statistics import median
from time import perf_counter

import torch

import fedacg
from fedacg.core.tensors import Device, count_devices, device_of_worker
from fedacg.core.vector import FlatModel
from fedacg.simulation.engine import one_thread
from speed import WORKLOADS, Workload, measure, our_rounds

WORKERS = (1, 2, 4)
NOT_THERE = 2


def describe(device: Device) -> str:
    """The device, and what it is driven by."""
    versions = f"fedacg {fedacg.__version__}, torch {torch.__version__}"
    if device != "cuda":
        return f"{device}, {versions}"
    found = torch.cuda.get_device_properties(0)
    memory = f"{found.total_memory / 2**30:.0f} GiB"
    return f"{torch.cuda.device_count()} × {found.name}, {memory}, CUDA {torch.version.cuda}, {versions}"


def rounds(workload: Workload, device: Device, workers: int, number: int) -> float:
    """Seconds per round of FedACG."""
    with ExitStack() as stack, one_thread():
        play = our_rounds(stack, workload, workers, "fedacg", device=device)
        return median(measure({"fedacg": play}, number)["fedacg"])


def step(workload: Workload, device: Device) -> float:
    """Milliseconds of one gradient of one client, with nothing to wait for between the steps."""
    place = device_of_worker(device, 0)
    flat = FlatModel(workload.module().to(place))
    x = flat.prepare(torch.randn(workload.batch, *workload.shape).to(place))
    y = torch.randint(10, (workload.batch,)).to(place)
    wait = torch.get_device_module(place).synchronize if device != "cpu" else lambda: None

    def steps(count: int) -> float:
        wait()
        begin = perf_counter()
        for _ in range(count):
            flat.g.zero_()
            torch.autograd.backward(torch.nn.functional.cross_entropy(flat.module(x), y))
            flat.w.add_(flat.g, alpha=-0.01)
        wait()
        return 1e3 * (perf_counter() - begin) / count

    steps(5)
    return steps(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--device", choices=("cuda", "mps"), default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device: Device = arguments.device
    if count_devices(device) == 0:
        print(
            f"torch {torch.__version__} finds no {device} device on this machine, so there is nothing to measure"
        )
        sys.exit(NOT_THERE)
    print(f"{describe(device)}; {os.cpu_count()} cores\n")
    print("| workload | where | workers | ms / step alone | s / round | of the CPU | examples per second |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in arguments.workloads or WORKLOADS:
        workload = WORKLOADS[name]
        examples = workload.cohort * workload.epochs * workload.examples
        cpu = 0.0
        places: list[tuple[Device, int]] = [("cpu", os.cpu_count() or 1), *((device, each) for each in WORKERS)]
        for where, workers in places:
            seconds = rounds(workload, where, workers, arguments.rounds)
            cpu = cpu or seconds
            cells = (
                f"{step(workload, where):.2f} | {seconds:.4f} | {seconds / cpu:.2f} | {examples / seconds:,.0f}"
            )
            print(f"| {name} | {where} | {workers} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
