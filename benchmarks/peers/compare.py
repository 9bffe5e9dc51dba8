"""Seconds per round of FedAvg here, in bare PyTorch, pfl-research, Flower and fluke, on the same work.

    python benchmarks/peers/compare.py [lenet] [logistic] [--turns N] [--peers fluke,…] [--out FOLDER]

Makes the peers' environments if they are missing, checks that all peers reach the same model, runs them in turns,
and writes a table, a picture and the figures. README.md explains the choices.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import environments
import findings
import numpy as np
from findings import Peer
from numpy.typing import NDArray
from turns import Player
from workload import CHECKS, WORKLOADS, Workload, workers

HERE = Path(__file__).parent
PEERS = ("fedacg", "bare", "pfl", "flower", "tutorial", "fluke")
TURNS = {"lenet": 5, "logistic": 6}
ROUNDS = {
    "lenet": dict.fromkeys(PEERS, 1),
    "logistic": {"fedacg": 100, "bare": 30, "pfl": 20, "flower": 2, "tutorial": 2, "fluke": 10},
}
"""Rounds of a turn: at least a second or two, so that the first of them, with cold caches, is not what counts."""
CHECKED = 3
"""Rounds after which models are compared."""
TOLERANCE = 1e-5
"""Of the way from θ; pfl sums updates in float32, whatever the model has."""


@contextmanager
def scene(workload: Workload) -> Iterator[Path]:
    """A folder with the workload's data."""
    with TemporaryDirectory(prefix="peers-") as folder:
        workload.write(Path(folder))
        yield Path(folder)


def player(peer: str, folder: Path, rounds: int, logs: Path) -> Player:
    """A peer that has started and run its first round."""
    programs = environments.make(peer)
    processes = f"--nproc-per-node={workers()}"
    launcher = [programs / "torchrun", "--standalone", processes] if peer == "pfl" else [programs / "python"]
    environment = dict(os.environ)
    if programs.parent.parent == environments.ENVIRONMENTS:
        environment.pop("PYTHONPATH", None)
    if peer in ("flower", "tutorial"):
        environment |= {
            "PEERS_FOLDER": str(folder),
            "PEERS_CLIENT": f"{peer}_client",
            "FLWR_HOME": str(folder / f"{peer}-home"),
            "RAY_TMPDIR": str(folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
    program = "flower" if peer == "tutorial" else peer
    command = [*map(str, launcher), str(HERE / f"peer_{program}.py"), str(folder), str(rounds)]
    return Player(command, environment, address=str(folder / peer), log=logs / f"{peer}.log")


def check(name: str, peers: list[Peer], logs: Path) -> None:
    """Have all peers run the same few rounds on a small workload, and compare their models."""
    models = {}
    with scene(CHECKS[name]) as folder, ExitStack() as stack:
        theta = np.load(folder / "theta.npy")
        for peer in peers:
            played = player(peer.name, folder, CHECKED, logs)
            stack.callback(played.close)
            for _ in range(CHECKED - 1):
                played.round()
            models[peer.name], peer.versions = played.finish()
    for peer in peers:
        peer.difference = difference(models[peer.name], models["fedacg"], theta)
        print(f"{name}: the model of {peer.name} differs by {peer.difference:.0e}", flush=True)
        if not peer.difference < TOLERANCE:
            raise SystemExit(f"{name}: {peer.name} does not do the same work as fedacg")


def difference(model: NDArray[Any], ours: NDArray[Any], theta: NDArray[Any]) -> float:
    """How far a model is from ours, as a part of our way from θ, by the largest entries."""
    if model.shape != ours.shape:
        raise SystemExit(f"a model has {model.size} parameters, that of fedacg {ours.size}")
    return float(np.abs(model - ours).max() / np.abs(ours - theta).max())


def measure(name: str, peers: list[Peer], turns: int, logs: Path) -> None:
    """Run the peers in turns."""
    with scene(WORKLOADS[name]) as folder, ExitStack() as stack:
        players = []
        for peer in peers:
            played = player(peer.name, folder, 1 + turns * ROUNDS[name][peer.name], logs)
            stack.callback(played.close)
            peer.start = played.start
            peer.examples = WORKLOADS[name].cohort * WORKLOADS[name].epochs * WORKLOADS[name].examples
            print(f"{name}: {peer.name} finished its first round after {peer.start:.1f} s", flush=True)
            players.append(played)
        for turn in range(turns):
            for peer, played in zip(peers, players, strict=True):
                peer.turns.append([played.round() for _ in range(ROUNDS[name][peer.name])])
                peer.memory = max(peer.memory, played.memory())
            shown = ", ".join(f"{peer.name} {median(peer.turns[-1]):.4f}" for peer in peers)
            print(f"{name}: turn {turn + 1} of {turns}, seconds per round: {shown}", flush=True)
        for played in players:
            played.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--turns", type=int, help="of each peer; by default as many as fit a few minutes")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="beside fedacg and bare, which all are compared to"
    )
    parser.add_argument("--out", type=Path, default=HERE / "out")
    arguments = parser.parse_args()
    for name in arguments.workloads:
        if name not in WORKLOADS:
            parser.error(f"WORKLOAD = {name}: must be {' or '.join(WORKLOADS)}")
    if arguments.turns is not None and arguments.turns < 1:
        parser.error(f"--turns = {arguments.turns}: must be at least 1")
    names = arguments.workloads or list(WORKLOADS)
    chosen = [peer for peer in PEERS if peer in ("fedacg", "bare", *arguments.peers.split(","))]
    for peer in chosen:
        environments.make(peer)
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine = findings.machine()
    found = {}
    for name in names:
        found[name] = [Peer(peer) for peer in chosen]
        check(name, found[name], arguments.out)
        measure(name, found[name], arguments.turns or TURNS[name], arguments.out)
    findings.write(found, machine, arguments.out)


if __name__ == "__main__":
    main()
