"""Runs watched while they are in progress: reading what is new, the live page, its server and the command."""

import http.client
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedacg.errors import InputError
from fedacg.report import live
from fedacg.report.live import LiveReport, Server, Tail
from fedacg.simulation.metrics import RoundMetrics
from support.command import Command, start
from support.folders import add_round, fake_run


@pytest.fixture(autouse=True)
def undealt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits are for the tests of the page."""
    monkeypatch.setattr(live, "splits_of", lambda runs: ([], []))


# Reading what is new


def test_only_new_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fake_run(tmp_path / "a", [0.1, 0.2], finished=False)
    tail = Tail(run / "metrics.jsonl")
    assert tail.read().accuracy == [0.1, 0.2]
    parsed: list[str] = []
    original = RoundMetrics.from_json
    monkeypatch.setattr(RoundMetrics, "from_json", lambda line, sealed: parsed.append(line) or original(line))
    add_round(run, 3, 0.3)
    assert tail.read().accuracy == [0.1, 0.2, 0.3]
    assert tail.read().accuracy == [0.1, 0.2, 0.3]
    assert [json.loads(line)["round"] for line in parsed] == [3]


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a", [0.1, 0.2], finished=False)
    path = run / "metrics.jsonl"
    whole = path.read_bytes()
    tail = Tail(path)
    for cut in range(whole.index(b"\n"), len(whole)):
        path.write_bytes(whole[:cut])
        assert len(tail.read()) == (1 if cut > whole.index(b"\n") else 0)
    path.write_bytes(whole)
    assert len(tail.read()) == 2


@pytest.mark.parametrize("again", [[0.5], [0.5, 0.6, 0.7, 0.8]])
def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path, again: list[float]) -> None:
    run = fake_run(tmp_path / "a", [0.1, 0.2, 0.3], finished=False)
    tail = Tail(run / "metrics.jsonl")
    tail.read()
    fresh = fake_run(tmp_path / "b", again, finished=False)
    (fresh / "metrics.jsonl").replace(run / "metrics.jsonl")
    assert tail.read().accuracy == again


def test_a_broken_line_is_named_and_does_not_cost_the_rounds_before_it(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a", [0.1], finished=False)
    tail = Tail(run / "metrics.jsonl")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2}\n')
    for _ in range(2):
        with pytest.raises(InputError, match=r"metrics\.jsonl, line 2 .*lacks lr"):
            tail.read()
    assert tail.history.accuracy == [0.1]


# The live report


def news(report: LiveReport, seen: str = "") -> Any:
    return json.loads(report.news(seen))


def test_news_tell_what_has_changed_and_nothing_when_nothing_has(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a", [0.1], finished=False)
    report = LiveReport([run])
    first = news(report)
    assert first["data"]["curves"][0]["evaluated"]["accuracy"] == [10]
    assert "in progress, 1 of 100 rounds" in first["parts"]["summary-part"]
    assert set(news(report, first["version"])) == {"version", "wait"}
    add_round(run, 2, 0.2)
    second = news(report, first["version"])
    assert second["data"]["curves"][0]["evaluated"]["accuracy"] == [10, 20]
    assert ">20.00<" in second["parts"]["results-part"]
    (run / "summary.json").write_text("{}")
    third = news(report, second["version"])
    assert "finished" in third["parts"]["reproduce-part"]
    assert third["wait"] >= live.SOONEST


def test_a_page_knows_its_version_and_may_ask_this_server_only(tmp_path: Path) -> None:
    report = LiveReport([fake_run(tmp_path / "a", [0.1], finished=False)])
    text = report.page()
    version = re.search(r'id="live" role="status" data-version="([^"]+)"', text)
    assert version is not None
    assert set(news(report, version[1])) == {"version", "wait"}
    assert "connect-src 'self'" in text.replace("&#39;", "'")


def test_a_run_that_has_no_round_yet_is_waited_for(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a", [], finished=False)
    report = LiveReport([run])
    assert news(report)["data"]["curves"] == []
    assert "no rounds yet" in report.page()
    add_round(run, 1, 0.5)
    assert len(news(report)["data"]["curves"]) == 1


def test_runs_that_begin_later_are_found_and_folders_without_a_run_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="no run in or below it"):
        LiveReport([tmp_path / "runs"])
    fake_run(tmp_path / "runs" / "a", [0.1], finished=False)
    report = LiveReport([tmp_path / "runs"])
    fake_run(tmp_path / "runs" / "b", [0.2], "fedacg", finished=False)
    assert [curve["label"] for curve in news(report)["data"]["curves"]] == ["FedAvg", "FedACG"]


def test_seeds_are_shown_one_by_one_until_all_have_ended(tmp_path: Path) -> None:
    first = fake_run(tmp_path / "a", [0.1, 0.2, 0.3], seed=0, finished=False)
    (first / "summary.json").write_text("{}")
    last = fake_run(tmp_path / "b", [0.5], seed=1, finished=False)
    report = LiveReport([tmp_path])
    curves = news(report)["data"]["curves"]
    assert [curve["label"] for curve in curves] == ["FedAvg, seed 0", "FedAvg, seed 1"]
    assert [len(curve["evaluated"]["rounds"]) for curve in curves] == [3, 1]
    (last / "summary.json").write_text("{}")
    assert [curve["label"] for curve in news(report)["data"]["curves"]] == ["FedAvg"]


def test_a_run_that_can_no_longer_be_read_is_shown_as_last_seen_with_a_note(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a", [0.1, 0.2], finished=False)
    report = LiveReport([run])
    with (run / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    found = news(report)
    assert "line 3 cannot be read" in found["parts"]["summary-part"]
    assert found["data"]["curves"][0]["evaluated"]["accuracy"] == [10, 20]
    for path in run.iterdir():
        path.unlink()
    assert len(news(report)["data"]["curves"]) == 1


def test_the_page_does_not_wait_for_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = threading.Event()

    def slow(runs: object) -> tuple[list[Any], list[str]]:
        dealt.wait(30)
        return [], ["a reason"]

    monkeypatch.setattr(live, "splits_of", slow)
    report = LiveReport([fake_run(tmp_path / "a", [0.1], finished=False)])
    first = news(report)
    assert "a reason" not in first["parts"]["split-part"]
    dealt.set()
    deadline = time.monotonic() + 30
    while report.version == first["version"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "a reason" in news(report, first["version"])["parts"]["split-part"]


def test_looks_take_a_small_part_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = LiveReport([fake_run(tmp_path / "a", [0.1], finished=False)])
    clock = iter([0.0, 0.7])
    monkeypatch.setattr(live, "perf_counter", lambda: next(clock))
    assert news(report)["wait"] == pytest.approx(0.7 / live.SHARE)


# The server


@contextmanager
def served(report: LiveReport) -> Iterator[Server]:
    with Server(report, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with served(LiveReport([fake_run(tmp_path / "a", [0.1], finished=False)])) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, str]:
    """The status, the kind and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def test_the_server_answers_with_the_page_and_with_news(server: Server) -> None:
    status, kind, text = ask(server, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert text.startswith("<!doctype html>")
    status, kind, text = ask(server, "/live.json?seen=")
    assert (status, kind) == (200, "application/json; charset=utf-8")
    version = json.loads(text)["version"]
    assert set(json.loads(ask(server, f"/live.json?seen={version}")[2])) == {"version", "wait"}


def test_the_server_knows_nothing_else(server: Server) -> None:
    for path in ("/metrics.jsonl", "/../experiment.toml", "//etc/passwd", "/live.json/x"):
        assert ask(server, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "HEAD"):
        assert ask(server, "/", method)[0] == 501


def test_the_server_is_on_this_machine_only_and_answers_to_its_own_names(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    for host in ("localhost:1234", "127.0.0.1", "localhost", "[::1]:80"):
        assert ask(server, "/live.json", host=host)[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", "[", ""):
        assert ask(server, "/live.json", host=host or " ")[0] == 403


def test_a_port_that_is_in_use_is_said(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"--port {server.server_port}: is in use; 0 takes a free one"):
        Server(LiveReport([tmp_path / "a"]), server.server_port)


# The command


def test_bad_input_is_refused(fedacg: Command) -> None:
    outcome = fedacg("watch", "nowhere")
    assert (outcome.code, outcome.err) == (2, "error: nowhere: no such folder\n")
    (fedacg.folder / "empty").mkdir()
    outcome = fedacg("watch", "empty")
    assert outcome.code == 2
    assert "no run in or below it" in outcome.err
    fake_run(fedacg.folder / "run", [0.1])
    assert "--port 70000: must be a number from 0 to 65535" in fedacg("watch", "run", "--port", "70000").err
    assert "a target is a fraction" in fedacg("watch", "run", "--target", "90").err


@pytest.mark.slow
def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", [0.1], finished=False)
    process = start(tmp_path, "watch", "run")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"live at http://127\.0\.0\.1:(\d+)/, until Ctrl-C\n", line)
        assert found is not None, line
        add_round(run, 2, 0.6)
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
        connection.request("GET", "/")
        assert ">60.00<" in connection.getresponse().read().decode()
        connection.close()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        assert (process.returncode, rest) == (130, "\nStopped watching; the runs continue.\n")
    finally:
        process.kill()
        process.communicate()
