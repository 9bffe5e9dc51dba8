"""Peak memory and disk of a method that keeps state at its clients, with ResNet-18 and 500 clients.

    python benchmarks/states.py [--method feddyn] [--rounds 10] [--workers 2]

The paper's large setting (batch 10, ten clients per round) on random images, with one local step in place of
fifty, which changes neither. Memory is the proportional set size of the parent and its workers, added up,
shared memory counted once; it is sampled during the rounds.
"""

import argparse
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from fedacg import methods
from fedacg.config.experiment import Experiment
from fedacg.engines import one_thread
from fedacg.engines.processes import ProcessEngine
from fedacg.runs.build import Ingredients, plan
from fedacg.runs.client_states import ClientStates
from speed import Workload

WORKLOAD = Workload("resnet18", 500, 100, (3, 32, 32), cohort=10, epochs=5, batch=10)


def proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just ended
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class Peak:
    """The largest sum of the processes' memory that was seen."""

    def __init__(self, pids: list[int]) -> None:
        self.bytes = 0
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
            self.bytes = max(self.bytes, sum(map(proportional_bytes, self._pids)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="feddyn")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    experiment = Experiment.parse(
        {
            "rounds": arguments.rounds,
            "method": {"name": arguments.method},
            "cohort": {"size": WORKLOAD.cohort},
            "local": {"steps": 1, "batch": WORKLOAD.batch},
            "evaluate": {"every": arguments.rounds, "batch": 50},
        }
    )
    module = WORKLOAD.module()
    ingredients = Ingredients(module, module.channels_last, WORKLOAD.data(), methods.build(arguments.method))
    engine = ProcessEngine(arguments.workers)
    with ExitStack() as stack, one_thread():
        stack.callback(engine.close)
        folder = Path(stack.enter_context(TemporaryDirectory()))
        memory = ClientStates(folder)
        federation = plan(experiment, ingredients).federation(engine, memory, [])
        peak = stack.enter_context(Peak([os.getpid(), *engine.pids]))
        seen: set[int] = set()
        for metrics in federation.run():
            seen.update(metrics.cohort)
            memory.settle(metrics.round)
            memory.forget(metrics.round)
        disk = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    print(f"{arguments.method}, {arguments.rounds} rounds, {len(seen)} of {WORKLOAD.clients} clients took part")
    print(f"peak memory {peak.bytes / 1e9:.2f} GB, states on disk {disk / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
