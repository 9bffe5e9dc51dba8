"""Peak memory and seconds a round with a hundred and with a million clients, and the same cohort.

    python benchmarks/memory.py [--clients 100 1000000] [--cohort 50] [--rounds 40]

Synthetic(1, 1) clients and logistic regression, two worker processes. Memory is the peak of the parent plus
that of its largest worker, each population in a process of its own; seconds are measured with the populations
taking turns, round by round, in one process.
"""

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from fedacg.engines import start
from fedacg.engines.base import one_thread
from fedacg.experiment import Experiment
from fedacg.ingredients import assemble, prepare
from fedacg.states import ClientStates


def rounds_of(stack: ExitStack, clients: int, cohort: int) -> Callable[[], None]:
    """A function that plays one round of a federation of this many clients."""
    experiment = Experiment.parse(
        {
            "rounds": 10**6,
            "data": {"name": "synthetic", "split": "natural", "clients": clients, "alpha": 1.0, "beta": 1.0},
            "model": {"name": "logistic"},
            "cohort": {"size": cohort},
            "local": {"epochs": 1, "batch": 10, "lr": 0.01},
        }
    )
    engine = start(experiment.engine)
    stack.callback(engine.close)
    memory = ClientStates(Path(stack.enter_context(TemporaryDirectory())))
    rounds = assemble(experiment, prepare(experiment), engine, memory).run()
    return lambda: (next(rounds), None)[1]


def peak_of(clients: int, cohort: int, rounds: int) -> None:
    """Play some rounds and print the peak memory in MB; the process must be new."""
    with ExitStack() as stack:
        play = rounds_of(stack, clients, cohort)
        for _ in range(rounds):
            play()
    kilobytes = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(kilobytes / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000_000])
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        peak_of(arguments.peak, arguments.cohort, arguments.rounds)
        return

    peaks = {}
    for clients in arguments.clients:
        options = ["--peak", str(clients), "--cohort", str(arguments.cohort), "--rounds", str(arguments.rounds)]
        done = subprocess.run([sys.executable, __file__, *options], check=True, stdout=subprocess.PIPE, text=True)
        peaks[clients] = float(done.stdout)
    seconds: dict[int, list[float]] = {clients: [] for clients in arguments.clients}
    with ExitStack() as stack, one_thread():
        plays = {clients: rounds_of(stack, clients, arguments.cohort) for clients in arguments.clients}
        for turn in range(arguments.rounds + 1):
            for clients, play in plays.items():
                begin = perf_counter()
                play()
                if turn:
                    seconds[clients].append(perf_counter() - begin)

    first = arguments.clients[0]
    print(f"{'clients':>10}{'peak MB':>10}{'ratio':>8}{'ms a round':>12}{'ratio':>8}")
    for clients in arguments.clients:
        ratio = median(a / b for a, b in zip(seconds[clients], seconds[first], strict=True))
        milliseconds = 1e3 * median(seconds[clients])
        print(
            f"{clients:>10}{peaks[clients]:>10.0f}{peaks[clients] / peaks[first]:>8.3f}"
            f"{milliseconds:>12.1f}{ratio:>8.3f}"
        )


if __name__ == "__main__":
    main()
