"""Processor time per round of every method, relative to FedAvg, on the `lenet` workload of speed.py.

    python benchmarks/methods.py [--cohort 10] [--rounds 8] [--out docs/results/cost.csv] [METHOD …]

One process does all the work, server and clients, and its own processor time is taken, which other work on the
machine hardly changes. Methods take turns: in every turn each runs a round between two rounds of FedAvg, and its
ratio is relative to their mean. The table shows the median, least and largest of these ratios over the turns. All
clients take part in every round, as some methods need it.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time

import rows as table
from fedacg.engines import one_thread
from fedacg.methods import METHODS
from speed import WORKLOADS, our_rounds

COLUMNS = ("method", "of fedavg", "least", "largest")


def ratios(rounds: dict[str, Callable[[], None]], turns: int) -> dict[str, list[float]]:
    """Of each method, its processor time per round over that of FedAvg's rounds before and after, turn by turn."""
    for play in rounds.values():
        play()  # warms up
    found: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(turns):
        before = taken(rounds["fedavg"])
        for name, play in rounds.items():
            its = taken(play)
            after = taken(rounds["fedavg"])
            found[name].append(2 * its / (before + after))
            before = after
    return found


def taken(play: Callable[[], None]) -> float:
    begin = process_time()
    play()
    return process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="names such as fedprox or fedacg+paq")
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    names = ["fedavg", *(name for name in arguments.methods or (*METHODS, "fedacg+paq") if name != "fedavg")]
    workload = replace(WORKLOADS["lenet"], clients=arguments.cohort, cohort=arguments.cohort)
    with ExitStack() as stack, one_thread():
        found = ratios({name: our_rounds(stack, workload, 1, name, "serial") for name in names}, arguments.rounds)
    rows = [
        dict(zip(COLUMNS, (name, *(f"{number:.3f}" for number in (median(its), min(its), max(its)))), strict=True))
        for name, its in found.items()
    ]
    for cells in (COLUMNS, *(row.values() for row in rows)):
        name, *numbers = cells
        print(f"{name:<12}" + "".join(f"{number:>11}" for number in numbers))
    table.save(arguments.out, COLUMNS, rows)


if __name__ == "__main__":
    main()
