"""Where the time of a round goes: a profile of speed.py's workloads, run in this process.

    python benchmarks/rounds.py [--rounds 60] [lenet] [logistic]

A profile exaggerates the cost of Python calls, and lacks the messages between processes: it shows where to look,
not how long a round takes.
"""

import argparse
import cProfile
import pstats
from contextlib import ExitStack

from fedacg.simulation.engine import one_thread
from speed import WORKLOADS, our_rounds

PARTS = {
    "lenet": {
        "who takes part, and their tasks": [("sampling.py", "attendance"), ("federation.py", "_tasks")],
        "the clients' work": [("worker.py", "serve")],
        "· batches: shuffle, fetch, normalise": [
            ("local.py", "_batches"),
            ("examples.py", "fetch"),
            ("pipelines.py", "__call__"),
        ],
        "· network and loss": [("local.py", "sum_losses")],
        "· gradients": [("graph.py", "_engine_run_backward")],
        "· corrections, clip, decay": [("local.py", "correct"), ("local.py", "direction")],
        "replies decoded, checked, counted, averaged": [("replies.py", "groups"), ("rules.py", "add_rows")],
    },
    "logistic": {
        "who takes part, and their tasks": [("sampling.py", "attendance"), ("federation.py", "_tasks")],
        "the clients' work": [("worker.py", "serve")],
        "· batches: shuffle, fetch, fill up": [("fused.py", "_steps")],
        "· network, loss and gradients": [("fused.py", "_at")],
        "· corrections, clip, decay": [("local.py", "correct"), ("local.py", "direction")],
        "replies decoded, checked, counted, averaged": [("replies.py", "groups"), ("rules.py", "add_rows")],
    },
}
"""By file and function; what is marked · is part of the clients' work. Replies ask for that work as they come."""


def shares(workload: str, rounds: int) -> dict[str, float]:
    """What part of the time each part of a round takes."""
    with ExitStack() as stack, one_thread():
        play = our_rounds(stack, WORKLOADS[workload], 0, "fedacg", engine="serial")
        play()
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(rounds):
            play()
        profile.disable()
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    whole = sum(times[2] for times in found.values())
    seconds = {part: sum(_inside(found, *place) for place in places) for part, places in PARTS[workload].items()}
    seconds["replies decoded, checked, counted, averaged"] -= seconds["the clients' work"]
    return {part: spent / whole for part, spent in seconds.items()}


def _inside(found: dict[tuple[str, int, str], tuple[float, ...]], file: str, function: str) -> float:
    """Seconds inside a function of this name; one that calls another of the same name is counted once."""
    return max(
        (
            times[3]
            for (path, _, name), times in found.items()
            if name == function and path.rpartition("/")[2] == file
        ),
        default=0.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    for workload in arguments.workloads:
        # A round of lenet is as long as some fifty of the others.
        rounds = arguments.rounds if workload == "logistic" else max(1, arguments.rounds // 20)
        print(f"| part of a round of {workload} | share |\n| --- | ---: |")
        for part, share in shares(workload, rounds).items():
            print(f"| {part} | {share:.0%} |")
        print()


if __name__ == "__main__":
    main()
