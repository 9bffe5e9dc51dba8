"""Ray clusters for tests: several nodes on this machine, each a group of processes that can be killed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fedacg

NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 4,
}
"""A node that was killed is missed within seconds."""


class Nodes:
    """A cluster of nodes with one CPU each; the first is the head."""

    def __init__(self) -> None:
        # In the test's own folder, the paths of Ray's sockets would be too long.
        self._folder = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._nodes: list[subprocess.Popen[bytes]] = []
        config = json.dumps(NOTICE)
        self._start("--head", f"--port={port}", "--include-dashboard=false", f"--system-config={config}")
        self.add()

    def add(self) -> None:
        self._start(f"--address={self.address}")

    def kill_last(self) -> None:
        os.killpg(self._nodes[-1].pid, signal.SIGKILL)
        self._nodes.pop().wait()

    @property
    def groups(self) -> list[int]:
        """The process groups of the nodes."""
        return [node.pid for node in self._nodes]

    def close(self) -> None:
        groups = self.groups
        while self._nodes:
            self.kill_last()
        until(lambda: not any(map(members, groups)), "processes of a node were left")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, *options: str) -> None:
        log = self._folder / f"node-{time.monotonic_ns()}.log"
        common = ["--block", "--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats"]
        if "--head" in options:
            common.append(f"--temp-dir={self._folder}")
        with log.open("wb") as output:
            node = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *common, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(Path(fedacg.__file__).parent.parent)},
            )
        self._nodes.append(node)
        until(lambda: "Ray runtime started" in log.read_text() or node.poll() is not None, "a node does not start")
        assert node.poll() is None, log.read_text()


def until(condition: Callable[[], bool], otherwise: str) -> None:
    """Wait for something that must happen."""
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def members(group: int) -> list[str]:
    """The command lines of the live processes of a group."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            state, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if folder.name.isdigit() and int(of) == group and state != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
