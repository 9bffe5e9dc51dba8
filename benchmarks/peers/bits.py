"""Which frameworks give the same bits twice, with another number of workers, and after a crash.

    python benchmarks/peers/bits.py [--out FOLDER]

FedAvg on 32 clients, eight per round, eight rounds, float32, every seed set, batches in a fixed order. Each peer
runs alone, once more in the same way, with one worker in place of two, and, where it has checkpoints of its own,
once with a SIGKILL after round four and a second start from the checkpoint. Models are compared by the SHA-256 of
their bytes.
"""

import argparse
import hashlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compare import HERE, player
from numpy.typing import NDArray
from turns import Player
from workload import WORKLOADS

ROUNDS = 8
KILLED = 4
PEERS = {"fedacg": True, "pfl": True, "flower": False}
"""Whether a peer can go back to a checkpoint by an option of its own."""
WORKLOAD = replace(WORKLOADS["logistic"], clients=32, cohort=8, examples=25, epochs=2, shuffle=False)
HEADING = (
    "| peer | twice the same bits | with one worker and with two | after a crash |\n| --- | --- | --- | --- |"
)


def fingerprint(model: NDArray[Any]) -> str:
    return hashlib.sha256(model.tobytes()).hexdigest()[:16]


def whole(played: Player) -> str:
    return fingerprint(played.rest())


def crashed(start: Callable[[], Player]) -> str:
    """The model of a run that was killed after some rounds and started again."""
    first = start()
    for _ in range(KILLED - 1):
        first.round()
    first.kill()
    return whole(start())


def run(peer: str, logs: Path, workers: int = 2, crash: bool = False) -> str:
    """The fingerprint of a peer's model after all rounds."""
    os.environ["PEERS_WORKERS"] = str(workers)
    with TemporaryDirectory(prefix="bits-") as name, ExitStack() as stack:
        folder = Path(name)
        WORKLOAD.write(folder)

        def start() -> Player:
            (folder / peer).unlink(missing_ok=True)
            played = player(peer, folder, ROUNDS, logs)
            stack.callback(played.close)
            return played

        if not crash:
            return whole(start())
        os.environ["PEERS_CHECKPOINT"] = str(folder / "checkpoint")
        try:
            return crashed(start)
        finally:
            del os.environ["PEERS_CHECKPOINT"]


def row(peer: str, logs: Path) -> str:
    """A row of the table."""
    model = run(peer, logs)
    cells = [run(peer, logs), run(peer, logs, workers=1)]
    words = ["yes" if cell == model else "no" for cell in cells]
    words.append("not tried" if not PEERS[peer] else "yes" if run(peer, logs, crash=True) == model else "no")
    return f"| {peer} | {' | '.join(words)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    logs = parser.parse_args().out
    logs.mkdir(parents=True, exist_ok=True)
    print(HEADING, flush=True)
    for peer in PEERS:
        print(row(peer, logs), flush=True)


if __name__ == "__main__":
    main()
