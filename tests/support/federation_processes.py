"""Real federations of Flower on this machine: a SuperLink and SuperNodes as processes, on free ports.

    with Deployment(tmp_path, nodes=3, tls=True) as deployment:
        run = deployment.run(app, rounds=3)
        run.wait_for(r"ROUND 2/3")
        deployment.kill("node-0")
        assert run.wait() == "finished:completed"

Every process has a name in its environment by which it and all it starts are found again, so that nothing is left
behind. All can reach loopback only (`loopback_only`), and have Flower's home in the folder of the deployment.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import fedacg
from support.federation_keys import write_certificates, write_node_key

PATIENCE = 300.0
"""Seconds until something that should happen is given up on."""

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "UV_OFFLINE": "1",
}
CONNECTION = "here"


def until(happened: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Poll until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (value := happened()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:g} s there is still no {what}")
        time.sleep(0.1)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Processes:
    """Processes by name, with all that they start, whatever session or group that moves to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.connections = folder / "connections.txt"
        self._id = uuid.uuid4().hex
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(name) | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started[name] = process
        return process

    def environment(self, name: str) -> dict[str, str]:
        paths = [str(Path(__file__).parent / "loopback_only"), str(Path(fedacg.__file__).parents[1])]
        return {
            **os.environ,
            **QUIET,
            "FEDACG_TEST_PROCESS": f"{self._id}:{name}",
            "FEDACG_TEST_CONNECTIONS": str(self.connections),
            "FLWR_HOME": str(self.folder / "home"),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONUNBUFFERED": "1",
        }

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ended(self, name: str) -> bool:
        return self._started[name].poll() is not None

    def wait_for(self, name: str, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        """Wait until a process has printed this; that it ends before is an error."""

        def printed() -> re.Match[str] | None:
            over = self.ended(name)
            found = re.search(pattern, self.log(name))
            if over and found is None:
                raise AssertionError(f"{name} ended without {pattern!r}:\n{self.log(name)}")
            return found

        try:
            found: re.Match[str] = until(printed, pattern, seconds)
        except TimeoutError as error:
            raise AssertionError(f"{name}: {error}\n{self.log(name)}") from None
        return found

    def kill(self, name: str = "") -> None:
        """SIGKILL to a process and all it has started; without a name, to all there are."""

        def gone() -> bool:
            alive = list(self.alive(name))
            for process in alive:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            return not alive

        until(gone, f"end of {name or 'all processes'}")
        for started, process in self._started.items():
            if name in ("", started):
                process.wait()

    def alive(self, name: str = "") -> Iterator[int]:
        """The processes of this name, or all, that are running."""
        mark = f"FEDACG_TEST_PROCESS={self._id}:{name}".encode() + (b"\0" if name else b"")
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environment = (folder / "environ").read_bytes()
                except OSError:  # it has ended, or is not ours
                    continue
                if mark in environment:
                    yield int(folder.name)

    def foreign(self) -> list[str]:
        """Every attempt of a process to reach another machine."""
        return [line for line in self.connections.read_text().splitlines() if line.startswith("away ")]

    def guarded(self) -> set[str]:
        """The programs that were held to loopback."""
        lines = self.connections.read_text().splitlines()
        return {Path(word).name for line in lines if line.startswith("here ") for word in line.split()[1:3]}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        assert list(self.alive()) == []


class Run:
    """A run of an app, as `flwr run --stream` shows it."""

    def __init__(self, deployment: "Deployment", name: str) -> None:
        self.deployment, self.name = deployment, name
        self.id = int(deployment.wait_for(name, r"Successfully started run (\d+)")[1])

    @property
    def text(self) -> str:
        """What it has printed, without colours."""
        return re.sub(r"\x1b\[\d*m", "", self.deployment.log(self.name))

    def wait_for(self, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        return self.deployment.wait_for(self.name, pattern, seconds)

    def wait(self, seconds: float = PATIENCE) -> str:
        """Wait until it ends, and return its status."""
        until(lambda: self.deployment.ended(self.name), f"end of {self.name}", seconds)
        return self.status()

    def status(self) -> str:
        listed = json.loads(self.deployment.flwr("list", CONNECTION, "--run-id", str(self.id), "--format", "json"))
        status: str = listed["runs"][0]["status"]
        return status


class Deployment(Processes):
    """A SuperLink `server` and SuperNodes `node-0`, `node-1`, …; with `tls`, also certificates and node keys."""

    def __init__(self, folder: Path, nodes: int = 3, *, tls: bool = False) -> None:
        super().__init__(folder)
        self.nodes, self.tls, self.port = nodes, tls, free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._runs = 0

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self.start_server()
            names = [f"node-{number}" for number in range(self.nodes)]
            if self.tls:
                self.register(*names)
            for number, name in enumerate(names):
                self.start_node(name, {"partition-id": number, "num-partitions": self.nodes})
            for name in names:
                self.wait_for(name, "SuperNode ID: ")
        except BaseException:
            self.kill()
            raise
        return self

    def _prepare(self) -> None:
        secure = f'root-certificates = "{self.folder / "ca.crt"}"' if self.tls else "insecure = true"
        (self.folder / "home").mkdir()
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink.{CONNECTION}]\naddress = "{self.address}"\n{secure}\n'
        )
        if self.tls:
            write_certificates(self.folder)
            for number in range(self.nodes):
                write_node_key(self.folder / f"node-{number}")

    def start_server(self) -> None:
        """The SuperLink; started again it finds its port and its state."""
        secure = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
        how = [*secure, "--enable-supernode-auth"] if self.tls else ["--insecure"]
        before = self.log("server").count("Uvicorn running")
        self.start(
            "server",
            "flower-superlink",
            *how,
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--database",
            "state.db",
        )
        self.wait_for("server", f"(?s)(Uvicorn running.*){{{before + 1}}}")

    def register(self, *names: str) -> None:
        """Make the keys of these nodes known to the SuperLink."""
        for name in names:
            self.start(f"register-{name}", "flwr", "supernode", "register", f"{name}.pub", CONNECTION)
        for name in names:
            self.wait_for(f"register-{name}", "registered successfully")

    def start_node(self, name: str, config: Mapping[str, Any], **environment: str) -> None:
        how = (
            ["--root-certificates", "ca.crt", "--auth-supernode-private-key", name] if self.tls else ["--insecure"]
        )
        self.start(
            name,
            *("flower-supernode", *how, "--superlink", self.address, "--port", str(free_port())),
            *("--node-config", " ".join(f"{key}={_toml(value)}" for key, value in config.items())),
            **environment,
        )

    def run(self, app: Path, **config: Any) -> Run:
        """Start an app; `round_timeout=9` sets its `round-timeout`."""
        self._runs += 1
        name = f"run-{self._runs}"
        settings = " ".join(f"{key.replace('_', '-')}={_toml(value)}" for key, value in config.items())
        self.start(name, "flwr", "run", str(app), CONNECTION, "--stream", *(["-c", settings] if settings else []))
        return Run(self, name)

    def flwr(self, *arguments: str) -> str:
        """What a command of Flower's prints."""
        finished = subprocess.run(
            ["flwr", *arguments],
            cwd=self.folder,
            env=self.environment("flwr"),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout


def _toml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str | bool) else str(value)
