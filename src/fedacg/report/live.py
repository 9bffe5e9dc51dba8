"""A live report of runs in progress: the page, and what is new since the last request.

It works only on request, and then reads only what was added, so that runs are not slowed down. Its web server is
small: this machine only, two addresses, only GET.
"""

import errno
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from socketserver import TCPServer
from threading import BoundedSemaphore, Lock, Thread
from time import perf_counter
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedacg.core.files import open_regular
from fedacg.errors import InputError
from fedacg.report import page
from fedacg.report.labels import splits_of
from fedacg.report.runs import Group, Run, find_runs, group_runs, load_run
from fedacg.report.series import Material, gather
from fedacg.runs.contents import EXPERIMENT, MARKER, METRICS, SUMMARY
from fedacg.runs.history import History
from fedacg.runs.session import PlannedRun, planned_runs
from fedacg.simulation.metrics import RoundMetrics


class Tail:
    """A metrics.jsonl that grows. A line without its end is one that is being written, and is left for later."""

    def __init__(self, path: Path) -> None:
        self._path, self._sealed = path, False
        self._begin()

    def _begin(self) -> None:
        self.history = History()
        self._offset = 0
        self._last = b""

    def read(self, *, sealed: bool = False) -> History:
        """All rounds so far. A file that was replaced, as after a resume, is read from its start.

        With `sealed`, every line must have a checksum.
        """
        self._sealed = sealed
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self._begin()
                    file.seek(0)
                new = file.read()
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read: {error.strerror}") from error
        for line in new[: new.rfind(b"\n") + 1].splitlines(keepends=True):
            if line.strip():
                self._append(line)
            self._offset += len(line)
            self._last = line
        return self.history

    def _append(self, line: bytes) -> None:
        try:
            self.history.append(RoundMetrics.from_json(line, sealed=self._sealed))
        except ValueError as error:
            number = len(self.history) + 1
            raise InputError(f"{self._path}, line {number} cannot be read: {error}") from error


SOONEST = 2.0
"""Least seconds between two requests of a page."""
SHARE = 0.05
"""Largest fraction of a core's time that updates may take."""


class LiveReport:
    """The page of the runs in and below some folders, and of those that begin there later."""

    def __init__(self, folders: Sequence[Path], targets: Sequence[float] | None = None) -> None:
        self._folders, self._targets = folders, targets
        self._tails: dict[Path, Tail] = {}
        self._runs: dict[Path, Run] = {}
        self._splits = page.Splits()
        self._coming: list[PlannedRun] = []
        self._files, self._deals, self._wait = "", 0, SOONEST
        self._lock = Lock()
        find_runs(folders)  # refuse a folder without a run, as waiting for it would be in vain
        self._look()

    @property
    def version(self) -> str:
        """A version that changes with the files of the runs, and when the splits are known."""
        return f"{self._files}-{self._deals}"

    def page(self) -> str:
        """The whole page as it is now."""
        with self._lock:
            self._look()
            return page.render(self._material, self._splits, version=self.version, coming=self._coming)

    def news(self, seen: str) -> str:
        """JSON with what has changed since the version `seen`, and how long to wait."""
        with self._lock:
            started = perf_counter()
            self._look()
            if self.version == seen:
                return json.dumps({"version": seen, "wait": self._wait})
            parts = json.dumps(page.parts(self._material, self._splits, self._coming), ensure_ascii=False)
            data = page.data(self._material, self._splits)
            self._wait = round(max(SOONEST, (perf_counter() - started) / SHARE), 1)
            return f'{{"version": "{self.version}", "wait": {self._wait}, "parts": {parts}, "data": {data}}}'

    def _look(self) -> None:
        """Read what is new, if there is anything."""
        found, coming = self._find(), planned_runs(self._folders)
        files = _fingerprint(found, coming)
        if files == self._files:
            return
        before = list(self._runs)
        self._material = self._gather(found)
        self._files, self._coming = files, coming
        if list(self._runs) != before:
            # Data may take seconds to read, and the rest of the page need not wait for them. Not a daemon: the
            # interpreter would end it in the midst of PyTorch's code, which aborts the program.
            Thread(target=self._deal, args=[self._runs]).start()

    def _deal(self, runs: dict[Path, Run]) -> None:
        """Read the splits, which makes another version of the page."""
        splits = page.Splits(*splits_of(list(runs.values())))
        with self._lock:
            if runs.keys() == self._runs.keys():
                self._splits = splits
                self._deals += 1

    def _find(self) -> list[Path]:
        try:
            return find_runs(self._folders)
        except InputError:
            return list(self._runs)  # they existed, and may be about to be rewritten

    def _gather(self, found: Sequence[Path]) -> Material:
        """All runs that can be read; of one that no longer can, what was last seen."""
        runs: dict[Path, Run] = {}
        failed: list[InputError] = []
        for folder in found:
            try:
                runs[folder] = load_run(folder, self._read)
            except InputError as error:
                failed.append(error)
                if folder in self._runs:
                    runs[folder] = self._runs[folder]
        if not runs:
            raise failed[0]
        self._runs = runs
        groups = [part for group in group_runs(list(runs.values())) for part in _apart(group)]
        material = gather(groups, self._targets)
        return replace(material, notes=(*material.notes, *map(str, failed)))

    def _read(self, path: Path, *, sealed: bool) -> tuple[History, list[str]]:
        return self._tails.setdefault(path, Tail(path)).read(sealed=sealed), []


def _apart(group: Group) -> list[Group]:
    """Single seeds as long as one of a group is in progress: a mean would be cut to its few rounds."""
    if all(run.summary is not None for run in group.runs):
        return [group]
    return [Group(run.label, (run,), group.copy) for run in group.runs]


def _fingerprint(folders: Sequence[Path], coming: Sequence[PlannedRun]) -> str:
    """Changes when anything that a page shows of these runs does."""
    names = (MARKER, EXPERIMENT, METRICS, SUMMARY)
    states = [(str(folder), [_state(folder / name) for name in names]) for folder in folders]
    return hashlib.sha256(repr((states, coming)).encode()).hexdigest()[:16]


def _state(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


HOST = "127.0.0.1"
_NAMES = {HOST, "localhost", "::1"}
_PATIENCE = 10.0
"""Seconds that a browser may take to ask, and to take each part of its answer; then its connection is closed."""
_MOST = 32
"""Connections at a time; more are closed at once, and a page that asks again later is served."""


class Server(ThreadingHTTPServer):
    """Serves a report until it is closed; with port 0, at a port that is free."""

    daemon_threads = True

    def __init__(self, report: LiveReport, port: int) -> None:
        self.report = report
        self._free = BoundedSemaphore(_MOST)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise InputError(f"--port {port}: {why}; 0 takes a free one") from None

    def server_bind(self) -> None:
        """Without the look-up of the machine's name that an HTTP server does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Ignore a browser that has gone or does not respond."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _PATIENCE

    def do_GET(self) -> None:
        if not self._is_asked_by_name():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "this page is only for this machine\n")
            return
        try:
            self._serve()
        except InputError as error:  # no run can be read at present
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")

    def _serve(self) -> None:
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is nothing here\n")
            return
        if address.path == "/":
            self._answer(HTTPStatus.OK, "text/html", self.server.report.page())
        elif address.path == "/live.json":
            seen = parse_qs(address.query).get("seen", [""])[0]
            self._answer(HTTPStatus.OK, "application/json", self.server.report.news(seen))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is nothing here\n")

    def _is_asked_by_name(self) -> bool:
        """Whether the request is for a local name: another site could otherwise reach this server."""
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in _NAMES
        except ValueError:
            return False

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a page makes a request every few seconds."""
