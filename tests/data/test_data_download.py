"""Downloads from a server on this machine: whole, altered, cut short, refused, and already there."""

import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from fedacg.data import catalogue, files, origins
from fedacg.data.examples import Origin
from fedacg.data.origins import Remote
from fedacg.errors import InputError
from support.checksums import md5
from support.command import Command

CONTENTS = bytes(range(256)) * 2000


class Site:
    """A site that serves CONTENTS at /file, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked += 1
                if self.path == "/none":
                    self.send_error(404)
                    return
                self.send_response(200)
                if self.path != "/unsized":
                    self.send_header("Content-Length", str(len(CONTENTS)))
                self.end_headers()
                self.wfile.write(CONTENTS[:1000] if self.path == "/short" else CONTENTS)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site = Site()
    yield site
    site.close()


def fetch(remote: Remote, root: Path) -> Path:
    with Progress(console=Console(file=io.StringIO())) as progress:
        return origins.fetch(remote, root, progress)


@pytest.mark.parametrize("path", ["/file", "/unsized"])
def test_a_file_arrives_under_its_name(site: Site, tmp_path: Path, path: str) -> None:
    got = fetch(Remote(site.url(path), md5(CONTENTS), "new/file.gz"), tmp_path / "root")
    assert got == tmp_path / "root" / "new" / "file.gz"
    assert got.read_bytes() == CONTENTS
    assert list(got.parent.iterdir()) == [got]


def test_a_file_that_is_there_is_not_fetched_again_but_a_damaged_one_is(site: Site, tmp_path: Path) -> None:
    remote = Remote(site.url("/file"), md5(CONTENTS), "file")
    fetch(remote, tmp_path)
    fetch(remote, tmp_path)
    assert site.asked == 1
    (tmp_path / "file").write_bytes(CONTENTS[:-1])
    assert fetch(remote, tmp_path).read_bytes() == CONTENTS
    assert site.asked == 2


@pytest.mark.parametrize(
    ("path", "published", "reason"),
    [
        ("/file", "0" * 32, f"the download has the md5 {md5(CONTENTS)}"),
        ("/short", md5(CONTENTS), f"ended after 1000 of {len(CONTENTS)} bytes"),
        ("/none", md5(CONTENTS), "the server answers 404 Not Found"),
    ],
)
def test_what_goes_wrong_is_told_with_what_to_do_by_hand_and_leaves_nothing_behind(
    site: Site, tmp_path: Path, path: str, published: str, reason: str
) -> None:
    with pytest.raises(InputError) as refusal:
        fetch(Remote(site.url(path), published, "file.gz"), tmp_path)
    for expected in (site.url(path), reason, "By hand", published, str(tmp_path / "file.gz")):
        assert expected in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_leaves_no_empty_folder(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        fetch(Remote(site.url("/none"), md5(CONTENTS), "new/raw/file.gz"), tmp_path / "root")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").touch()
    with pytest.raises(InputError):
        fetch(Remote(site.url("/none"), md5(CONTENTS), "new/raw/file.gz"), tmp_path)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_no_network_is_told_with_what_to_do_by_hand(site: Site, tmp_path: Path) -> None:
    dead = Site()
    url = dead.url("/file")
    dead.close()
    with pytest.raises(InputError, match=r"(?s)Connection refused.*By hand"):
        fetch(Remote(url, md5(CONTENTS), "file.gz"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_leaves_the_old_file_alone(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(InputError):
        fetch(Remote(site.url("/short"), md5(CONTENTS), "file"), tmp_path)
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_folder_that_cannot_be_made_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "in the way").write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot read and write .*in the way"):
        fetch(Remote(site.url("/file"), md5(CONTENTS), "in the way/file"), tmp_path)


def test_getting_a_data_set_fetches_all_its_files_below_the_data_root(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    remotes = tuple(Remote(site.url("/file"), md5(CONTENTS), f"mnist/{part}") for part in "ab")
    monkeypatch.setitem(origins.REMOTES, "mnist", remotes)
    shown = io.StringIO()
    assert origins.download("mnist", files.data_root(), Console(file=shown)) == [
        tmp_path / "mnist/a",
        tmp_path / "mnist/b",
    ]
    assert (tmp_path / "mnist/b").read_bytes() == CONTENTS


def test_what_is_built_in_needs_nothing() -> None:
    assert origins.download("digits", files.data_root(), Console(file=io.StringIO())) == []


def test_an_unknown_data_set_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"unknown data set 'cifar-10': did you mean 'cifar10'\?"):
        origins.download("cifar-10", files.data_root())


def test_every_data_set_that_can_be_missing_can_be_fetched_or_is_told_how_to_get_by_hand() -> None:
    for name, facts in catalogue.FACTS.items():
        ways = [name in origins.REMOTES, name in origins.BY_HAND]
        assert sum(ways) == (facts.source is not None), name


@pytest.mark.parametrize("name", origins.REMOTES)
def test_what_is_fetched_lies_where_it_is_looked_for(tmp_path: Path, name: str) -> None:
    source = catalogue.FACTS[name].source
    assert source is not None
    for remote in origins.REMOTES[name]:
        (tmp_path / remote.place).parent.mkdir(exist_ok=True)
        (tmp_path / remote.place).touch()
    found = source.find(tmp_path)
    assert found is not None
    assert found.is_relative_to(tmp_path)


@pytest.mark.parametrize("name", origins.BY_HAND)
def test_what_has_no_download_is_told_with_what_to_get_and_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    with pytest.raises(InputError) as refusal:
        origins.download(name, files.data_root())
    for expected in (f"{name} has no direct download", "http", str(tmp_path), "FEDACG_DATA"):
        assert expected in str(refusal.value)
    # the folder that it names is where the data set is looked for
    folder = next(word for word in origins.BY_HAND[name].split() if word.endswith("/"))
    with pytest.raises(InputError) as refusal:
        catalogue.load(name)
    assert str(tmp_path / folder) in str(refusal.value)


@pytest.mark.parametrize("read_before", [True, False])
def test_what_is_there_is_seen_and_not_fetched(
    fedacg: Command, monkeypatch: pytest.MonkeyPatch, read_before: bool
) -> None:
    """FEMNIST has no download, which is no error where a whole copy lies unpacked."""
    whole = Origin("data/leaf/femnist", 90, 10, 3, ())
    found = catalogue.Survey(Path("data/leaf/femnist"), whole if read_before else None)
    monkeypatch.setattr(catalogue, "survey", lambda name: found)
    monkeypatch.setattr(catalogue, "check", lambda name: whole)
    outcome = fedacg("data", "get", "femnist")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "data/leaf/femnist: there already, complete; nothing to download\n"


def test_what_is_there_in_part_is_told_before_it_is_fetched(
    fedacg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Origin("data/leaf/femnist", 9, 1, 3, ("has 3 clients where there should be 3550",))
    monkeypatch.setattr(catalogue, "survey", lambda name: catalogue.Survey(Path("data/leaf/femnist"), part))
    outcome = fedacg("data", "get", "femnist")
    assert outcome.code == 2
    assert "there already, but not complete: has 3 clients" in outcome.out
    assert "no direct download" in outcome.err
