"""Who can reach what a run starts: nobody but this machine."""

import os
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedacg[ray]'")

from fedacg.engines.ray.engine import RayEngine  # noqa: E402

# Ray leaves processes that it has killed for the interpreter to collect.
pytestmark = pytest.mark.filterwarnings("ignore:.*subprocess .* is still running:ResourceWarning")
LISTENING = "0A"


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(child) for task in tasks for child in task.read_text().split()]
    return [pid, *(each for child in below for each in descendants(child))]


def address(hexadecimal: str) -> IPv4Address | IPv6Address:
    """An address as the kernel writes it: words of four bytes, each in this machine's order."""
    words = [bytes.fromhex(hexadecimal[i : i + 8])[::-1] for i in range(0, len(hexadecimal), 8)]
    if len(words) == 1:
        return IPv4Address(words[0])
    found = IPv6Address(b"".join(words))
    return found.ipv4_mapped or found


def listening(pids: list[int]) -> list[IPv4Address | IPv6Address]:
    """The addresses at which these processes wait for connections."""
    sockets = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == LISTENING:
                sockets[f"socket:[{parts[9]}]"] = address(parts[1].partition(":")[0])
    found = []
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found.append(sockets[str(descriptor.readlink())])
            except (OSError, KeyError):
                continue
    return found


@pytest.mark.slow
def test_every_socket_of_a_cluster_that_is_started_here_is_at_the_loopback_address() -> None:
    before = dict(os.environ)
    engine = RayEngine(2, cores=2, address="local")
    try:
        found = listening(descendants(os.getpid()))
        assert len(found) >= 5, "the driver, the head, its node and two workers"
        assert {str(each) for each in found} == {"127.0.0.1"}
    finally:
        engine.close()
    assert os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == before.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
