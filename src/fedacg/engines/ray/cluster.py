"""The way into a Ray cluster: join one that is running, or start one on this machine that ends with its user."""

import logging
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Literal

import ray
from ray._private import ray_constants

from fedacg.errors import InputError, RunError

_TIMEOUT = 5.0
"""Seconds that a cluster may take to answer; Ray itself would try for many minutes."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a gRPC client begins: the preface of HTTP/2 and an empty frame of settings, which is number 4."""
_LONGEST_FOLDER = 20
"""Ray's sockets lie deep in its folder, and their paths may have 107 characters."""
_LONGEST_REASON = 300
_LOOPBACK = "127.0.0.1"


class Cluster:
    """A Ray cluster that this process is connected to until `close`.

    An address is `auto`, `local` or host:port. Without one, RAY_ADDRESS counts, and without that, a cluster is
    started here. If the program has connected to Ray by itself, that connection is used and left as it is.
    """

    def __init__(self, address: str, cpus: int) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._connected = False
        if not ray.is_initialized():
            source = "engine.address" if address else "RAY_ADDRESS"
            address = address or os.environ.get("RAY_ADDRESS", "") or "local"
            try:
                if address == "local":
                    self._start(cpus)
                else:
                    _join(address, source)
            except BaseException:
                self._shut_down()
                raise
            self._connected = True
        self.address: str = ray.get_runtime_context().gcs_address

    def count(self, resource: Literal["CPU", "GPU"]) -> int:
        """How many of these the nodes have together, free or not."""
        resources: Callable[[], dict[str, float]] = ray.cluster_resources
        return int(resources().get(resource, 0))

    def close(self) -> None:
        if self._connected:
            self._connected = False
            self._shut_down()

    def _start(self, cpus: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # A folder of its own: in the common one, the traces of another cluster may lead astray.
        base = os.environ.get("RAY_TMPDIR") or gettempdir()
        self._folder = TemporaryDirectory(
            prefix="fedacg-ray-", dir=base if len(base) <= _LONGEST_FOLDER else "/tmp", ignore_cleanup_errors=True
        )
        try:
            with _loopback_only():
                _connect(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=self._folder.name)
        except Exception as error:
            raise InputError(f"engine.name = 'ray': no cluster could be started: {_reason(error)}") from None
        host = ray.get_runtime_context().gcs_address.rpartition(":")[0]
        if host != _LOOPBACK:
            raise RunError(
                f"engine.name = 'ray': the cluster that was started listens at {host}, not at {_LOOPBACK}"
            )

    def _shut_down(self) -> None:
        ray.shutdown()
        if self._folder:
            self._folder.cleanup()


def _join(address: str, source: str) -> None:
    given = f"{source} = {address!r}"
    if address != "auto":
        match = re.fullmatch(r"\[?([^\s/]+?)\]?:(\d{1,5})", address)
        if match is None or int(match[2]) > 65535:
            raise InputError(f"{given}: must be host:port, 'auto' or 'local'")
        try:
            _greet(match[1], int(match[2]))
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{given}: no Ray cluster answers there: {reason}") from None
    try:
        _connect(address=address)
    except Exception as error:
        raise InputError(f"{given}: {_reason(error)}") from None


def _greet(host: str, port: int) -> None:
    """Check that a gRPC server answers, unless the connection is encrypted."""
    with socket.create_connection((host, port), timeout=_TIMEOUT) as connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            return
        connection.sendall(_GREETING)
        answer = connection.recv(9)
        if len(answer) < 4 or answer[3] != 4:
            raise OSError("it does not speak gRPC")


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Have Ray start nodes that listen at the loopback address, as it does on macOS; there is no authentication.

    It replaces a loopback address that it is given by one that others can reach. The variable is read by processes
    that Ray starts, the constant is what this one has made of it.
    """
    before = os.environ.get(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        variable, ray_constants.ENABLE_RAY_CLUSTER = before
        if variable is None:
            del os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR]
        else:
            os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = variable


def _connect(**options: Any) -> None:
    with warnings.catch_warnings(), _own_signals():
        warnings.simplefilter("ignore")
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the program's own handler: Ray would have SIGTERM end the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST_REASON]
