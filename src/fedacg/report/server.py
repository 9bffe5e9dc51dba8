"""A small web server for a live report: on this machine only, two addresses, nothing but GET."""

import errno
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from socketserver import TCPServer
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedacg.errors import InputError
from fedacg.report.live import LiveReport

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
            raise InputError(f"--port {port}: {why}; 0 takes one that is free") from None

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
        """A browser that is no longer there, or does not listen, is no error."""
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
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "this page is for this machine only\n")
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
        """Another site's page could reach this machine under a name of its own, and read along."""
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
        """A page that looks every few seconds is not worth a line each time."""
