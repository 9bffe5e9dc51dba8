"""Worker processes that die at birth, hang, or lose the process that starts them."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedacg.engines import process_pool
from fedacg.engines.process_pool import ForkServer
from fedacg.engines.processes import ProcessEngine
from fedacg.errors import RunError
from fedacg.runs.build import prepare
from fedacg.runs.runner import play
from support.runs import digest, tiny


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The process id of the process that starts workers, which has loaded torch."""
    with closing(ProcessEngine(1)) as engine:
        assert len(engine.pids) == 1
        yield process_pool._servers[os.getpid()]._process.pid


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid: int) -> str:
    """As in /proc: Z for a process that is dead and not waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def alive(pid: int) -> bool:
    try:
        return state(pid) != "Z"
    except FileNotFoundError:
        return False


def until(condition: object, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_workers_killed_at_birth_are_replaced_in_forty_of_forty_tries(server: int, tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=2", "engine.name=processes", "engine.workers=2")
    ingredients = prepare(experiment)
    whole = digest(play(experiment, ingredients))
    for _ in range(40):
        before = set(children(server))
        with closing(ProcessEngine(2)) as engine:
            until(lambda before=before: set(children(server)) - before)
            victim = (set(children(server)) - before).pop()
            os.kill(victim, signal.SIGKILL)
            assert digest(play(experiment, ingredients, engine=engine)) == whole
            assert victim not in engine.pids


def test_workers_that_always_die_at_birth_end_the_run_with_the_reason(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ForkServer.start

    def deadly(self: ForkServer, descriptors: list[int]) -> int:
        before = set(children(server))
        number = start(self, descriptors)
        until(lambda: set(children(server)) - before)
        for child in set(children(server)) - before:
            os.kill(child, signal.SIGKILL)
        return number

    monkeypatch.setattr(ForkServer, "start", deadly)
    with (
        closing(ProcessEngine(1)) as engine,
        pytest.raises(RunError, match=r"starting ended its worker 3 times \(SIGKILL, often a sign of"),
    ):
        _ = engine.pids


def test_a_worker_that_hangs_is_reported_and_waited_for(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_pool, "_TICK", 0.2)
    monkeypatch.setattr(process_pool, "_SILENCE", 8)
    experiment = tiny(tmp_path, "rounds=3", "engine.name=processes")
    with closing(ProcessEngine(2)) as engine, caplog.at_level(logging.WARNING, "fedacg"):
        expected = digest(play(experiment, prepare(experiment), engine=engine))
        assert caplog.messages == [], "workers at work are not reported"
        stopped = engine.pids[1]
        os.kill(stopped, signal.SIGSTOP)
        waker = threading.Thread(target=lambda: (until(lambda: caplog.messages), os.kill(stopped, signal.SIGCONT)))
        waker.start()
        assert digest(play(experiment, prepare(experiment), engine=engine)) == expected
        waker.join()
    assert caplog.messages == [
        f"worker 1 (process {stopped}) shows no sign of life for 1.6 s: "
        "is it stopped, or short of memory? Still waiting."
    ]


def test_a_worker_that_hangs_is_ended_with_the_others(server: int) -> None:
    engine = ProcessEngine(2)
    pids = engine.pids
    os.kill(pids[0], signal.SIGSTOP)
    engine.close()
    assert not any(map(alive, pids))


def test_workers_cost_a_fork_leave_no_descriptor_and_the_server_no_child(server: int) -> None:
    ours, theirs = Path("/proc/self/fd"), Path(f"/proc/{server}/fd")
    before = len(list(ours.iterdir())), len(list(theirs.iterdir())), children(server)
    times = []
    for _ in range(10):
        start = time.process_time(), time.monotonic()
        with closing(ProcessEngine(2)) as engine:
            assert len(set(engine.pids)) == 2
            for pid in engine.pids:
                assert len(list(Path(f"/proc/{pid}/fd").iterdir())) == 7, "stdio, channel twice, lifeline, pulse"
        times.append(time.monotonic() - start[1])
    assert min(times) < 1, "two workers and their end; an import of torch takes seconds"
    assert (len(list(ours.iterdir())), len(list(theirs.iterdir())), children(server)) == before
    assert len(list(Path(f"/proc/{server}/task").iterdir())) == 1, "a fork is safe only without threads"


def test_the_death_of_the_process_that_starts_workers_costs_nothing(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=3", "engine.name=processes")
    with closing(ProcessEngine(2)) as engine:
        expected = digest(play(experiment, prepare(experiment), engine=engine))
        first = process_pool._servers[os.getpid()]
        first._process.kill()
        first._process.wait()
        survivors = engine.pids
        assert digest(play(experiment, prepare(experiment), engine=engine)) == expected
        assert engine.pids == survivors, "workers do not need it"
        os.kill(survivors[0], signal.SIGKILL)
        assert digest(play(experiment, prepare(experiment), engine=engine)) == expected
        assert process_pool._servers[os.getpid()] is not first
    until(lambda: not any(map(alive, survivors)))


def test_a_process_with_threads_starts_fresh_interpreters_as_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some tools start a thread in every Python process by a file like this.
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(process_pool, "_servers", {})
    engine = ProcessEngine(1)
    try:
        (pid,) = engine.pids
        assert "fedacg.engines.worker_process" in Path(f"/proc/{pid}/cmdline").read_text()
    finally:
        engine.close()
        process_pool._servers[os.getpid()].close()
