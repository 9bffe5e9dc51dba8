"""Rounds on a Ray cluster of several nodes, each in a network namespace: seconds, messages and bytes per round.

    python benchmarks/ray_nodes.py [--nodes 1,2,4] [--rounds 30] [logistic] [lenet]

Every node is a Ray node of its own, with its scheduler, object store and one CPU, and holds one worker. It has its
own network stack and address, and one cable to the bridge at which the driver's node is, which has no worker. All
share this machine's cores, so seconds say what messages cost and not how a cluster scales.

Orders and the bytes of parcels are counted where the driver packs them: a round's message goes to every node once,
what a group of clients kept goes out with its order, and its answers come back. Bytes on the cable are those of
the node's network interface, with what Ray and TCP add; what Ray sends without any round is measured first and
taken off, and is the last column. Needs root and iproute2 on Linux; without, it ends with exit code 2.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any
from unittest.mock import patch

import ray

from fedacg.engines.ray import engine
from fedacg.simulation.engine import one_thread
from speed import WORKLOADS, Workload, our_rounds

NOT_ALLOWED = 2
PREFIX = "10.231.7"
"""Of the addresses: the driver's node is number 1, the others follow."""
STORE = 2**29
"""Bytes of a node's object store."""
PATIENCE = 60.0
"""Seconds that a node may take to start or to end."""
IDLE = 5.0
"""Seconds for which nodes are watched while nothing is asked of them."""


class NotAllowed(Exception):
    """This system does not let us make network namespaces."""


def ip(*words: str) -> str:
    """What `ip` prints."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotAllowed("the program ip (iproute2) is not installed") from None
    if done.returncode:
        raise NotAllowed(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Traffic:
    """What has gone over a cable, seen from the driver."""

    sent: int
    received: int
    packets: int

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.sent - other.sent, self.received - other.received, self.packets - other.packets)


class Network:
    """A bridge with as many namespaces as nodes, each at the end of a cable; all goes when the stack is closed."""

    def __init__(self, stack: ExitStack, nodes: int) -> None:
        name = f"fa{os.getpid()}"
        self._cables, self._spaces = ([f"{name}{kind}{node}" for node in range(nodes)] for kind in "cn")
        ip("link", "add", name, "type", "bridge")
        stack.callback(ip, "link", "delete", name)
        ip("address", "add", f"{PREFIX}.1/24", "dev", name)
        ip("link", "set", name, "up")
        for node, (cable, space) in enumerate(zip(self._cables, self._spaces, strict=True)):
            ip("netns", "add", space)
            stack.callback(self._remove, space)
            ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            stack.callback(ip, "link", "delete", cable)  # a namespace keeps its end until its last process is gone
            ip("link", "set", cable, "master", name, "up")
            ip("-n", space, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", space, "link", "set", device, "up")

    @staticmethod
    def address(node: int) -> str:
        return f"{PREFIX}.{node + 2}"

    def start(self, node: int, *words: str) -> "subprocess.Popen[bytes]":
        """Start a program in a namespace."""
        return quietly("ip", "netns", "exec", self._spaces[node], *words)

    def traffic(self, node: int) -> Traffic:
        figures = Path("/sys/class/net", self._cables[node], "statistics")
        sent, received, out, back = (
            int((figures / name).read_text()) for name in ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
        )
        return Traffic(sent, received, out + back)

    @staticmethod
    def _remove(space: str) -> None:
        """End what still runs in a namespace, and remove it."""
        for pid in map(int, ip("netns", "pids", space).split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ip("netns", "delete", space)


def quietly(*words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def end(program: "subprocess.Popen[bytes]") -> None:
    """End `ray start --block`, which ends what it has started."""
    program.terminate()
    try:
        program.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def start_cluster(stack: ExitStack, nodes: int) -> Network:
    """A cluster on a network of its own, to which this process is connected as driver."""
    network = Network(stack, nodes)
    folder = stack.enter_context(TemporaryDirectory(prefix="fa-ray-", dir="/tmp", ignore_cleanup_errors=True))
    with socket.create_server((f"{PREFIX}.1", 0)) as free:
        head = f"{PREFIX}.1:{free.getsockname()[1]}"
    program = str(Path(sys.executable).parent / "ray")
    common = ["--block", "--disable-usage-stats", f"--object-store-memory={STORE}"]
    host, _, port = head.partition(":")
    first = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={folder}"]
    stack.callback(end, quietly(program, "start", f"--node-ip-address={host}", *first, *common))
    wait_for(lambda: not socket.create_connection((host, int(port)), timeout=1).close(), "the driver's node")
    ray.init(address=head, _node_ip_address=host, log_to_driver=False, configure_logging=False)
    stack.callback(ray.shutdown)
    for node in range(nodes):
        place = [f"--address={head}", f"--node-ip-address={network.address(node)}", "--num-cpus=1"]
        stack.callback(end, network.start(node, program, "start", *place, *common))
        # One after the other: they choose the names of their sockets in the same folder.
        wait_for(lambda ready=node + 1: ray.cluster_resources().get("CPU", 0) == ready, f"node {node}")
    return network


def wait_for(condition: Callable[[], bool], what: str) -> None:
    begin = perf_counter()
    while perf_counter() - begin < PATIENCE:
        with suppress(OSError):
            if condition():
                return
        sleep(0.2)
    raise SystemExit(f"{what} did not start within {PATIENCE:g} s")


class Counter:
    """What the driver sends and is sent."""

    def __init__(self) -> None:
        self.orders = self.placed = self.kept = self.answers = 0
        self._give, self._pack, self._unpack = engine.RayHandle.give, engine.pack, engine.unpack

    def patch(self, stack: ExitStack) -> None:
        stack.enter_context(patch.object(engine.RayHandle, "give", lambda *given: self._count(*given)))
        stack.enter_context(patch.object(engine, "pack", self._packed))
        stack.enter_context(patch.object(engine, "unpack", self._unpacked))

    def _count(self, handle: Any, order: Any, news: Any) -> None:
        self.orders += 1
        self._give(handle, order, news)

    def _packed(self, value: Any) -> engine.Parcel:
        parcel = self._pack(value)
        if isinstance(value, dict) and "phi" in value:
            self.placed += size(parcel)
        else:
            self.kept += size(parcel)
        return parcel

    def _unpacked(self, parcel: engine.Parcel) -> Any:
        self.answers += size(parcel)
        return self._unpack(parcel)


def size(parcel: engine.Parcel) -> int:
    return len(parcel.structure) + sum(array.nbytes for array in parcel.arrays)


COLUMNS = (
    "s / round",
    "orders",
    "kB to every node",
    "kB with the orders",
    "kB of answers",
    "kB on the cable to a node",
    "from a node",
    "packets of a node",
    "kB / s without rounds",
)


def measure(workload: Workload, nodes: int, rounds: int) -> list[float]:
    """A row of the table."""
    counter = Counter()
    with ExitStack() as stack, one_thread():
        network = start_cluster(stack, nodes)
        play = our_rounds(stack, workload, nodes, "fedavg", "ray")
        play()
        play()

        def traffic() -> list[Traffic]:
            return [network.traffic(node) for node in range(nodes)]

        before = traffic()
        sleep(IDLE)
        idle = [(after - one) for after, one in zip(traffic(), before, strict=True)]
        counter.patch(stack)
        before, seconds = traffic(), []
        for _ in range(rounds):
            begin = perf_counter()
            play()
            seconds.append(perf_counter() - begin)
        used = [after - one for after, one in zip(traffic(), before, strict=True)]
    share = sum(seconds) / IDLE

    def per_node(name: str) -> float:
        mine = sum(
            getattr(one, name) - share * getattr(without, name) for one, without in zip(used, idle, strict=True)
        )
        return mine / nodes / rounds

    parcels = (counter.placed, counter.kept, counter.answers)
    silence = sum(one.sent + one.received for one in idle) / nodes / IDLE / 1e3
    cable = [per_node("sent") / 1e3, per_node("received") / 1e3, per_node("packets")]
    kilobytes = [figure / rounds / 1e3 for figure in parcels]
    return [median(seconds), counter.orders / rounds, *kilobytes, *cable, silence]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--nodes", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # namespaces are removed before the end
    print(f"| workload | nodes | {' | '.join(COLUMNS)} |\n| --- |{' ---: |' * (1 + len(COLUMNS))}", flush=True)
    for name in arguments.workloads or ("logistic", "lenet"):
        for nodes in map(int, arguments.nodes.split(",")):
            try:
                seconds, *figures = measure(WORKLOADS[name], nodes, arguments.rounds)
            except NotAllowed as error:
                print(f"network namespaces cannot be made here: {error}", file=sys.stderr)
                sys.exit(NOT_ALLOWED)
            cells = [f"{seconds:.4f}", *(f"{figure:,.1f}" for figure in figures)]
            print(f"| {name} | {nodes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
