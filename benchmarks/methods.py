"""What a round of every method costs, relative to FedAvg's, on the `lenet` workload of speed.py.

    python benchmarks/methods.py [--workers 2] [--rounds 8] [METHOD …]

All methods take turns, round by round; ratios are medians over the turns.
"""

import argparse
from contextlib import ExitStack
from statistics import median

from fedacg.engines import one_thread
from fedacg.methods import METHODS
from speed import WORKLOADS, measure, our_rounds, ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="names such as fedprox or fedacg+paq")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    names = ["fedavg", *(name for name in arguments.methods or (*METHODS, "fedacg+paq") if name != "fedavg")]
    with ExitStack() as stack, one_thread():
        rounds = {name: our_rounds(stack, WORKLOADS["lenet"], arguments.workers, name) for name in names}
        seconds = measure(rounds, arguments.rounds)
    print(f"{'method':<12}{'s a round':>10}{'of fedavg':>11}")
    for name in names:
        print(f"{name:<12}{median(seconds[name]):>10.3f}{ratio(seconds, name, 'fedavg'):>11.3f}")


if __name__ == "__main__":
    main()
