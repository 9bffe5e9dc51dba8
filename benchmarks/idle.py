"""How long workers are idle in a round: while they train, while the server is evaluated, and between the two.

    python benchmarks/idle.py [--rounds 5] [cnn] [lenet]

FedACG on CIFAR-10 with its real sizes: 500 clients of 100 images, ten per round, 5 epochs, batch 10, and all
10,000 test images after every round. A worker is idle when it does not compute, by the system's count. What
evaluating a round during the next one could win at most is the idle time of the last two columns.
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from fedacg.config.experiment import Experiment
from fedacg.engines import one_thread
from fedacg.engines.processes import ProcessEngine
from fedacg.runs.build import plan, prepare
from fedacg.runs.client_states import ClientStates, scratch_folder

WORKERS = 2


def computed(pids: list[int]) -> float:
    """Seconds for which processes have computed since they started."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


class Stopwatch:
    """Seconds of one kind of work, and for how long the workers computed in them."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self.seconds = self.busy = 0.0

    def __enter__(self) -> None:
        self._begin = perf_counter(), computed(self._pids)

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._begin[0]
        self.busy += computed(self._pids) - self._begin[1]

    @property
    def idle(self) -> float:
        return WORKERS * self.seconds - self.busy


def measure(model: str, rounds: int) -> None:
    """A row of the table."""
    experiment = Experiment.parse(
        {
            "rounds": 10**6,
            "data": {"name": "cifar10", "clients": 500},
            "model": {"name": model},
            "method": {"name": "fedacg"},
            "cohort": {"size": 10},
            "local": {"epochs": 5, "batch": 10},
            "engine": {"name": "processes", "workers": WORKERS},
        }
    )
    engine = ProcessEngine(WORKERS)
    with ExitStack() as stack, one_thread():
        stack.callback(engine.close)
        memory = ClientStates(stack.enter_context(scratch_folder()))
        played = plan(experiment, prepare(experiment)).federation(engine, memory, []).run()
        whole, evaluating = Stopwatch(engine.pids), Stopwatch(engine.pids)
        evaluate = engine.evaluate

        def timed(*given: Any, **named: Any) -> Any:
            with evaluating:
                return evaluate(*given, **named)

        engine.evaluate = timed  # type: ignore[method-assign]
        next(played)
        evaluating.seconds = evaluating.busy = 0.0
        found = []
        for _ in range(rounds):
            with whole:
                found.append(next(played))
    training = sum(metrics.seconds_train for metrics in found)
    between = whole.seconds - training - evaluating.seconds
    all_time = WORKERS * whole.seconds
    # Between training and evaluation workers have nothing to do at all.
    shares = [whole.idle - evaluating.idle - WORKERS * between, evaluating.idle, WORKERS * between]
    seconds = [whole.seconds, training, evaluating.seconds, between]
    cells = [*(f"{value / rounds:.3f}" for value in seconds), *(f"{share / all_time:.1%}" for share in shares)]
    print(f"| {model} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["cnn", "lenet"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, {WORKERS} workers\n")
    print("| model | s / round | training | evaluation | between | idle in training | in evaluation | between |")
    print("| --- |" + " ---: |" * 7)
    for model in arguments.models:
        measure(model, arguments.rounds)


if __name__ == "__main__":
    main()
