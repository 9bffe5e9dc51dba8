"""Browsers that say nothing, leave, or come in crowds cost the live page nothing."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedacg.errors import InputError
from fedacg.report import live
from fedacg.report.live import LiveReport, Server
from support.folders import fake_run


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(live, "splits_of", lambda runs: ([], []))
    monkeypatch.setattr(live._Handler, "timeout", 0.3)
    with Server(LiveReport([fake_run(tmp_path / "a", [0.1])]), 0) as each:
        thread = threading.Thread(target=each.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield each
        each.shutdown()
        thread.join()


def status(served: Server) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=10)
    connection.request("GET", "/live.json?seen=x")
    return connection.getresponse().status


def handlers() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def wait_for_none() -> None:
    end = time.monotonic() + 10
    while handlers() and time.monotonic() < end:
        time.sleep(0.02)
    assert handlers() == 0


def test_idle_connections_are_closed_and_others_served(served: Server) -> None:
    idle = [socket.create_connection(("127.0.0.1", served.server_port)) for _ in range(live._MOST + 8)]
    idle[0].sendall(b"GET / HT")
    time.sleep(0.1)
    assert handlers() <= live._MOST
    wait_for_none()
    assert status(served) == 200
    for each in idle:
        each.close()


def test_a_browser_that_leaves_is_no_error(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        gone = socket.create_connection(("127.0.0.1", served.server_port))
        gone.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, not a polite end
        gone.close()
    wait_for_none()
    assert status(served) == 200
    assert capsys.readouterr().err == ""


def test_what_cannot_be_read_at_present_is_answered(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(seen: str) -> str:
        raise InputError("runs/a: cannot be read")

    monkeypatch.setattr(served.report, "news", unreadable)
    assert status(served) == 503
