"""CPU seconds of imports, of commands that need no torch, of a first round, and of a worker's start.

    python benchmarks/starts.py [--turns 5]

User and system time of whole processes, the least of the turns: what else the machine does only adds to it. Python
may write its bytecode, whatever the environment says, so that only the first turn compiles. A worker's start is
what six workers take more than two, by four.
"""

import argparse
import os
import shlex
import subprocess
import sys
from tempfile import TemporaryDirectory

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
IMPORTS = ("fedacg", "torch")


def cpu_seconds(*arguments: str) -> float:
    """User and system time of one process and those it starts."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    least = {f"import {name}": ["-c", f"import {name}"] for name in IMPORTS}
    with TemporaryDirectory() as folder:
        first = "run quickstart --set rounds=1"
        few, many = (f"{first} --set engine.workers={workers}" for workers in (2, 6))
        for command in (*COMMANDS, first, few, many):
            out = f" --out {folder}/run --overwrite" if command.startswith(first) else ""
            least[f"fedacg {command}"] = ["-m", "fedacg", *shlex.split(command + out)]
        found = {}
        for shown, arguments in least.items():
            found[shown] = min(cpu_seconds(*arguments) for _ in range(turns))
            print(f"{found[shown]:.2f} s  {shown}", flush=True)
    print(f"{(found[f'fedacg {many}'] - found[f'fedacg {few}']) / 4:.2f} s  a worker's start")


if __name__ == "__main__":
    main()
