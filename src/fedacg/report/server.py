"""A small web server for a live report: on this machine only, two addresses, nothing but GET."""

import errno
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from urllib.parse import parse_qs, urlsplit

from fedacg.errors import InputError
from fedacg.report.live import LiveReport

HOST = "127.0.0.1"
_NAMES = {HOST, "localhost", "::1"}


class Server(ThreadingHTTPServer):
    """Serves a report until it is closed; with port 0, at a port that is free."""

    daemon_threads = True

    def __init__(self, report: LiveReport, port: int) -> None:
        self.report = report
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise InputError(f"--port {port}: {why}; 0 takes one that is free") from None

    def server_bind(self) -> None:
        """Without the look-up of the machine's name that an HTTP server does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if not self._is_asked_by_name():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "this page is for this machine only\n")
        elif address.path == "/":
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
        body = text.encode()
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
