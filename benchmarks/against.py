"""Seconds per round here against another checkout of this repository, round by round in turns.

    git worktree add ../old COMMIT
    python benchmarks/against.py ../old [--rounds 60] [--workers 2] [lenet] [logistic]

Each checkout plays the workloads of its own `benchmarks/speed.py` in a process of its own. The machine's speed
drifts, so the two take turns after every round, and the ratio is the median over the turns.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType

HERE = Path(__file__).resolve().parent.parent
METHODS = ("fedavg", "fedacg")


def load_speed(root: Path) -> ModuleType:
    """The `benchmarks/speed.py` of a checkout."""
    spec = importlib.util.spec_from_file_location("speed", root / "benchmarks" / "speed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["speed"] = module
    sys.path.insert(0, str(root / "benchmarks"))
    spec.loader.exec_module(module)
    return module


def player(root: Path, workload: str, method: str, workers: int) -> None:
    """Play a round whenever a line comes in, and answer with its seconds."""
    speed = load_speed(root)
    with ExitStack() as stack:
        engine = "processes" if workers else "serial"
        play = speed.our_rounds(stack, speed.WORKLOADS[workload], workers, method, engine)
        for _ in sys.stdin:
            begin = perf_counter()
            play()
            print(perf_counter() - begin, flush=True)


def start(root: Path, workload: str, method: str, workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, str(root), workload, "--play", method, "--workers", str(workers)]
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("workloads", nargs="*", default=["lenet", "logistic"])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--play", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.play:
        player(chosen.other, chosen.workloads[0], chosen.play, chosen.workers)
        return
    print(f"{'workload':9} {'method':8} {'there':>8} {'here':>8} {'here of there':>14}")
    for workload in chosen.workloads:
        for method in METHODS:
            roots = (chosen.other.resolve(), HERE)
            processes = [start(root, workload, method, chosen.workers) for root in roots]
            turns = [[ask(process) for process in processes] for _ in range(chosen.rounds + 5)][5:]
            for process in processes:
                process.communicate()
            there, here = (median(seconds) for seconds in zip(*turns, strict=True))
            ratio = median(b / a for a, b in turns)
            print(f"{workload:9} {method:8} {there:8.4f} {here:8.4f} {ratio:14.3f}", flush=True)


if __name__ == "__main__":
    main()
