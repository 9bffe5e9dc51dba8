"""Where the time of a fused round goes: a profile of speed.py's logistic workload, played in this process.

    python benchmarks/rounds.py [--rounds 60]

A profile makes calls of Python look dearer than they are, and the messages between processes are not in it: it
says where to look, not how long a round takes.
"""

import argparse
import cProfile
import pstats
from contextlib import ExitStack

from fedacg.engines.base import one_thread
from speed import WORKLOADS, our_rounds

PARTS = {
    "who takes part": ("sampling.py", "attendance"),
    "tasks": ("federation.py", "_tasks"),
    "the clients' work": ("worker.py", "train_group"),
    "· batches: shuffle, fetch, fill up": ("fused.py", "_steps"),
    "· network, loss and gradients": ("fused.py", "differentiate"),
    "· corrections, clip, decay": ("local.py", "direction"),
    "replies decoded, checked, counted, averaged": ("rules.py", "_sum"),
}
"""By file and function; what is marked · is part of the clients' work. Replies ask for that work as they come."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    with ExitStack() as stack, one_thread():
        play = our_rounds(stack, WORKLOADS["logistic"], 0, "fedacg", engine="serial")
        play()
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(arguments.rounds):
            play()
        profile.disable()
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    seconds = {
        part: sum(
            times[3]
            for (path, _, name), times in found.items()
            if name == function and path.rpartition("/")[2] == file
        )
        for part, (file, function) in PARTS.items()
    }
    seconds["replies decoded, checked, counted, averaged"] -= seconds["the clients' work"]
    whole = sum(times[2] for times in found.values())
    print("| part of a round | share |\n| --- | ---: |")
    for part, spent in seconds.items():
        print(f"| {part} | {spent / whole:.0%} |")


if __name__ == "__main__":
    main()
