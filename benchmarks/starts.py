"""CPU seconds of commands that need no torch.

    python benchmarks/starts.py [--turns 5]

User and system time of whole processes, the least of the turns: what else the machine does only adds to it.
"""

import argparse
import os
import shlex
import subprocess
import sys

COMMANDS = (
    "--version",
    "--help",
    "recipes",
    "methods",
    "run nonsense",
    "run quickstart --set local.lr=-1",
    "run quickstart --method fedacg:lam=2",
    "compare quickstart --methods fedavg,fedacgg",
    "run quickstart --set data.split=diriclet",
)


def cpu_seconds(command: str) -> float:
    """User and system time of one process."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "fedacg", *shlex.split(command)], capture_output=True, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    for command in COMMANDS:
        print(f"{min(cpu_seconds(command) for _ in range(turns)):.2f} s  fedacg {command}")


if __name__ == "__main__":
    main()
