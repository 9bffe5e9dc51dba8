"""docs/_tools/links.py, which opens the external links of the documents: against a server on this machine."""

import importlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_tools")
    return importlib.import_module("links")


class Pages(BaseHTTPRequestHandler):
    """A page, one that has moved, one that refuses HEAD, one that is slow, and no other."""

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(301)
            self.send_header("Location", "/page")
        elif self.path == "/slow":
            time.sleep(1)
            self.send_response(200)
        elif self.path == "/shy" and self.command == "HEAD":
            self.send_response(405)
        else:
            self.send_response(200 if self.path in ("/page", "/shy") else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_links_that_answer_are_fine_and_the_others_come_with_the_reason(links: ModuleType, address: str) -> None:
    wanted = {f"{address}/{name}": [] for name in ("page", "moved", "shy", "gone", "slow")}
    broken = links.check(wanted, seconds=0.3)
    assert set(broken) == {f"{address}/gone", f"{address}/slow"}
    assert broken[f"{address}/gone"].startswith("404")
    assert "timed out" in broken[f"{address}/slow"]


def test_a_server_that_is_not_there_is_a_broken_link(links: ModuleType) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        free = server.server_port
    assert "refused" in links.problem(f"http://127.0.0.1:{free}/page", seconds=1)


def test_links_are_found_once_with_all_their_pages_and_without_those_that_lead_nowhere(
    links: ModuleType, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.md", tmp_path / "two.md"
    one.write_text("[a](https://a.org/x#y) [b](start.md) <http://b.org/> [c](http://localhost:8080/)\n")
    two.write_text("[a](https://a.org/x), `https://only.code/`\n")
    assert links.external([one, two]) == {"https://a.org/x": [one, two], "http://b.org/": [one]}


def test_the_documents_have_links_to_check(links: ModuleType) -> None:
    found = links.external(links.documents())
    assert "https://arxiv.org/abs/2201.03172" in found
    assert len(found) > 50
