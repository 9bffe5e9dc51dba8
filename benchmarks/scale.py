"""Seconds and memory of a round, by the size of the cohort and by the number of clients.

    python benchmarks/scale.py [--rounds 15]

Synthetic(1, 1) clients that are made when they take part, logistic regression, 20 local steps of batch 10, FedACG,
two worker processes, evaluation left out. Seconds are measured with all federations taking turns, round by round;
memory is the peak of the parent plus that of its largest worker, each federation in a process of its own. The
table that it prints stands in docs/benchmarks.md, from which `make figures` draws it.
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

from fedacg.config.experiment import Experiment
from fedacg.engines import start
from fedacg.runs.build import plan, prepare
from fedacg.runs.client_states import ClientStates
from fedacg.simulation.engine import one_thread

COHORTS = (10, 100, 1000)
CLIENTS = (1_000, 100_000, 10_000_000)
USUAL_COHORT, USUAL_CLIENTS = 100, 100_000
FEDERATIONS = list(
    dict.fromkeys(
        [(USUAL_CLIENTS, cohort) for cohort in COHORTS] + [(clients, USUAL_COHORT) for clients in CLIENTS]
    )
)
"""(clients, cohort): every cohort with the usual number of clients, and the other way round."""


def rounds_of(stack: ExitStack, clients: int, cohort: int) -> Callable[[], None]:
    """A function that plays one round of a federation."""
    experiment = Experiment.parse(
        {
            "rounds": 10**6,
            "data": {"name": "synthetic", "split": "natural", "clients": clients, "alpha": 1.0, "beta": 1.0},
            "model": {"name": "logistic"},
            "method": {"name": "fedacg"},
            "cohort": {"size": cohort},
            "local": {"steps": 20, "batch": 10, "lr": 0.01},
            "evaluate": {"every": 10**6},
            "engine": {"workers": 2},
        }
    )
    engine = start(experiment.engine)
    stack.callback(engine.close)
    memory = ClientStates(Path(stack.enter_context(TemporaryDirectory())))
    rounds = plan(experiment, prepare(experiment)).federation(engine, memory, []).run()
    return lambda: (next(rounds), None)[1]


def peak(clients: int, cohort: int, rounds: int) -> float:
    """Megabytes at most while some rounds are played; the process must be new."""
    with ExitStack() as stack, one_thread():
        play = rounds_of(stack, clients, cohort)
        for _ in range(rounds):
            play()
    kilobytes = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return kilobytes / 1000


def peak_elsewhere(clients: int, cohort: int, rounds: int) -> float:
    options = ["--peak", str(clients), str(cohort), "--rounds", str(rounds)]
    done = subprocess.run([sys.executable, __file__, *options], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def times(rounds: int) -> dict[tuple[int, int], list[float]]:
    """Seconds of every round of every federation; the first round is not counted."""
    seconds: dict[tuple[int, int], list[float]] = {federation: [] for federation in FEDERATIONS}
    with ExitStack() as stack, one_thread():
        plays = {federation: rounds_of(stack, *federation) for federation in FEDERATIONS}
        for turn in range(rounds + 1):
            for federation, play in plays.items():
                begin = perf_counter()
                play()
                if turn:
                    seconds[federation].append(perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peak", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print(peak(*arguments.peak, arguments.rounds))
        return

    megabytes = {federation: peak_elsewhere(*federation, arguments.rounds) for federation in FEDERATIONS}
    measured = times(arguments.rounds)
    seconds = {federation: median(found) for federation, found in measured.items()}
    usual = measured[USUAL_CLIENTS, USUAL_COHORT]
    print("| clients | per round | ms per round | of the usual | ms per client | peak memory |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for (clients, cohort), found in measured.items():
        ratio = median(a / b for a, b in zip(found, usual, strict=True))
        milliseconds = 1e3 * seconds[clients, cohort]
        print(
            f"| {clients:,} | {cohort} | {milliseconds:.0f} | {ratio:.2f} | {milliseconds / cohort:.2f} "
            f"| {megabytes[clients, cohort]:.0f} MB |"
        )


if __name__ == "__main__":
    main()
