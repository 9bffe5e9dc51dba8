"""Memory and disk of runs: ResNet-18 with several workers, and the states of many clients of a small model.

    python benchmarks/states.py [--method feddyn] [--rounds 10] [--workers 2,4,8]
    python benchmarks/states.py --clients 100000

The first is the paper's large setting (500 clients, batch 10, ten clients per round) on random images, with one
local step in place of fifty, which changes neither memory nor disk. Memory is the proportional set size, which
counts shared memory once, of the parent and its workers; it is sampled during the rounds. Every number of workers
has a process of its own. The second has so many clients take part in turns of a thousand, with a logistic
regression of 650 parameters, and a checkpoint every ten rounds.
"""

import argparse
import multiprocessing
import os
import resource
import threading
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import perf_counter

from fedacg import methods
from fedacg.config.experiment import Experiment
from fedacg.engines import one_thread
from fedacg.engines.processes import ProcessEngine
from fedacg.runs.build import Ingredients, plan
from fedacg.runs.client_states import ROOM, ClientStates
from speed import Workload

WORKLOAD = Workload("resnet18", 500, 100, (3, 32, 32), cohort=10, epochs=5, batch=10)
COHORT = 1000
EVERY = 10
"""Rounds between checkpoints of the second benchmark."""


def proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just ended
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class Peak:
    """The largest memory seen of the first process, of the largest other one, and of all together."""

    def __init__(self, pids: list[int]) -> None:
        self.parent = self.worker = self.together = 0
        self._pids, self._done = pids, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            parent, *workers = map(proportional_bytes, self._pids)
            self.parent, self.worker = max(self.parent, parent), max([self.worker, *workers])
            self.together = max(self.together, parent + sum(workers))


def large(method: str, rounds: int, workers: int) -> None:
    """A row for ResNet-18: peak of parent and workers, and the disk."""
    experiment = Experiment.parse(
        {
            "rounds": rounds,
            "method": {"name": method},
            "cohort": {"size": WORKLOAD.cohort},
            "local": {"steps": 1, "batch": WORKLOAD.batch},
            "evaluate": {"every": rounds, "batch": 50},
        }
    )
    ingredients = Ingredients(WORKLOAD.module(), False, WORKLOAD.data(), methods.build(method))
    engine = ProcessEngine(workers)
    with ExitStack() as stack, one_thread():
        stack.callback(engine.close)
        folder = Path(stack.enter_context(TemporaryDirectory()))
        memory = ClientStates(folder, room=ROOM)
        federation = plan(experiment, ingredients).federation(engine, memory, [])
        peak = stack.enter_context(Peak([os.getpid(), *engine.pids]))
        seen: set[int] = set()
        for metrics in federation.run():
            seen.update(metrics.cohort)
            memory.settle(metrics.round)
            memory.forget(metrics.round)
        disk = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    sizes = (peak.parent, peak.worker, peak.together, disk)
    cells = [method, f"{workers}", f"{len(seen)}", *(f"{size / 1e9:.2f}" for size in sizes)]
    print(f"| {' | '.join(cells)} |", flush=True)


def many(method: str, clients: int) -> None:
    """A small model: seconds per round and checkpoint, files and bytes, while more clients get states."""
    workload = Workload("logistic", clients, 4, (64,), cohort=COHORT, epochs=1, batch=4)
    turns = [range(first, min(first + COHORT, clients)) for first in range(0, clients, COHORT)]
    cohorts = [list(turn) for turn in (*turns, *turns[:EVERY])]
    experiment = Experiment.parse(
        {
            "rounds": len(cohorts),
            "data": {"clients": clients},
            "method": {"name": method},
            "cohort": {"size": COHORT},
            "local": {"batch": 4, "epochs": 1},
            "evaluate": {"every": len(cohorts)},
        }
    )
    ingredients = Ingredients(workload.module(), False, workload.data(), methods.build(method))
    engine = ProcessEngine(2)
    print("| clients with states | s / round | s / checkpoint | files | longest folder | MB on disk |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    with ExitStack() as stack, one_thread():
        stack.callback(engine.close)
        folder = Path(stack.enter_context(TemporaryDirectory())) / "clients"
        memory = ClientStates(folder, room=ROOM)
        memory.rewind(0)
        federation = plan(experiment, ingredients, cohorts).federation(engine, memory, [])
        seconds, begin = [], perf_counter()
        for metrics in federation.run():
            seconds.append(perf_counter() - begin)
            if metrics.round % EVERY == 0:
                begin = perf_counter()
                memory.settle(metrics.round)
                memory.forget(metrics.round)
                checkpoint = perf_counter() - begin
                longest = max(len(list(shard.iterdir())) for shard in folder.iterdir())
                sizes = [path.stat().st_size for path in folder.rglob("*.safetensors")]
                print(
                    f"| {len(memory.clients):,} | {mean(seconds):.3f} | {checkpoint:.2f} | {len(sizes):,} "
                    f"| {longest:,} | {sum(sizes) / 1e6:.0f} |",
                    flush=True,
                )
                seconds = []
            begin = perf_counter()
    print(f"\npeak memory of the parent {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="feddyn")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--workers", default="2", help="one number or several")
    parser.add_argument("--clients", type=int, help="a small model and so many clients instead")
    arguments = parser.parse_args()
    if arguments.clients:
        many(arguments.method, arguments.clients)
        return
    print("| method | workers | clients that took part | parent, GB | largest worker | all | states on disk |")
    print("| --- |" + " ---: |" * 6, flush=True)
    for workers in map(int, arguments.workers.split(",")):
        given = (arguments.method, arguments.rounds, workers)
        process = multiprocessing.get_context("spawn").Process(target=large, args=given)
        process.start()
        process.join()


if __name__ == "__main__":
    main()
