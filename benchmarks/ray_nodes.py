"""Rounds on a Ray cluster of several nodes, all on this machine: seconds, messages and bytes per round.

    python benchmarks/ray_nodes.py [--nodes 1,2,4] [--rounds 30] [logistic] [lenet]

Every node is a Ray node of its own, with its scheduler, object store and one CPU, and holds one worker; the
driver's node has none. They share this machine's cores, so seconds say what messages cost and not how a cluster
scales. Bytes are those of the parcels: a round's message goes to every node once, what a group of clients kept
goes out with its order and its answers come back.
"""

import argparse
import os
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import ray
from ray.cluster_utils import Cluster

from fedacg.engines.ray import engine
from fedacg.simulation.engine import one_thread
from speed import WORKLOADS, Workload, our_rounds


class Counter:
    """What the driver sends and is sent."""

    def __init__(self) -> None:
        self.orders = self.placed = self.sent = self.received = 0
        self._give, self._pack, self._unpack = engine.RayHandle.give, engine.pack, engine.unpack

    def give(self, handle: Any, order: Any, news: Any) -> None:
        self.orders += 1
        self._give(handle, order, news)

    def pack(self, value: Any) -> engine.Parcel:
        parcel = self._pack(value)
        if isinstance(value, dict) and "phi" in value:
            self.placed += size(parcel)
        else:
            self.sent += size(parcel)
        return parcel

    def unpack(self, parcel: engine.Parcel) -> Any:
        self.received += size(parcel)
        return self._unpack(parcel)

    @property
    def figures(self) -> tuple[int, ...]:
        return self.orders, self.placed, self.sent, self.received


def size(parcel: engine.Parcel) -> int:
    return len(parcel.structure) + sum(array.nbytes for array in parcel.arrays)


def measure(name: str, workload: Workload, nodes: int, rounds: int) -> None:
    """A row of the table."""
    counter = Counter()
    with ExitStack() as stack, one_thread():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        stack.callback(cluster.shutdown)
        for _ in range(nodes):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        stack.callback(ray.shutdown)
        play = our_rounds(stack, workload, nodes, "fedavg", "ray")
        play()
        stack.enter_context(patch.object(engine.RayHandle, "give", lambda *given: counter.give(*given)))
        stack.enter_context(patch.object(engine, "pack", counter.pack))
        stack.enter_context(patch.object(engine, "unpack", counter.unpack))
        seconds = []
        for _ in range(rounds):
            begin = perf_counter()
            play()
            seconds.append(perf_counter() - begin)
    orders, placed, sent, received = (figure / rounds for figure in counter.figures)
    cells = [f"{nodes}", f"{median(seconds):.4f}", f"{orders:.1f}", f"{placed / 1e3:.1f}", f"{sent / 1e3:.1f}"]
    print(f"| {name} | {' | '.join(cells)} | {received / 1e3:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--nodes", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    print("| workload | nodes | s / round | orders | kB to every node | kB with the orders | kB of answers |")
    print("| --- |" + " ---: |" * 6)
    for name in arguments.workloads or ("logistic", "lenet"):
        for nodes in map(int, arguments.nodes.split(",")):
            measure(name, WORKLOADS[name], nodes, arguments.rounds)


if __name__ == "__main__":
    main()
