"""Runs that are disturbed: `python -m support.disturbing` with a plan as JSON on standard input.

Each run is forked from this process, which has torch loaded and everything prepared, so that a disturbance costs
tens of milliseconds. What happened is printed as JSON. Tests call `disturb`.
"""

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, NoReturn

from fedacg.core.files import unseal

WRITING = {"open", "os.mkdir"}
"""Audit events that a full disk refuses; fsync is added to them."""
CHANGING = WRITING | {"os.rename", "os.remove", "os.rmdir", "os.truncate"}
"""Audit events that change files."""
LAST_OPERATION = 90
"""A run is disturbed at one of its first so many operations,"""
LAST_BYTE = 6000
"""or where a file gets longer than some number of bytes up to this,"""
LAST_INSTANT = 0.1
"""or at some instant of its first seconds."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = 130


@dataclass(frozen=True)
class Plan:
    """What is to be run and how it is disturbed: killed, on a full disk, or asked to end."""

    folder: str
    settings: list[str]
    kind: Literal["kill", "full", "signal"]
    disturbances: int
    seed: int


@dataclass
class Report:
    """What came of it."""

    ways: dict[str, int] = field(default_factory=lambda: {"operation": 0, "byte": 0, "instant": 0, "twice": 0})
    """Disturbances: at an operation on files, in the middle of a file, at an instant, twice in a row."""
    runs: int = 0
    """Runs that were played to their end after some disturbances."""
    differing: int = 0
    """Runs whose model, or whose history but for the seconds, is not that of the undisturbed one."""
    unexpected: list[str] = field(default_factory=list)
    """Ends of a process that the disturbance does not explain, and words that should not have been said."""

    @property
    def disturbances(self) -> int:
        return sum(self.ways.values())


def disturb(plan: Plan) -> Report:
    """Run this program on a plan."""
    tests = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "support.disturbing"],
        input=json.dumps(asdict(plan)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path]), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return Report(**json.loads(done.stdout))


class Operations:
    """Counts the operations on files below a folder, and does something at one of them and at all after it."""

    def __init__(self, folder: Path, events: set[str], number: int, action: Callable[[], None]) -> None:
        self._folder, self._events, self._left, self._action = str(folder), events, number, action

    def install(self) -> None:
        """For the rest of this process's life."""
        sys.addaudithook(self._heard)
        fsync = os.fsync

        def counted(descriptor: int) -> None:
            self._happens()
            fsync(descriptor)

        os.fsync = counted

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in self._events or not str(arguments[0]).startswith(self._folder):
            return
        if event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR):
            self._happens()

    def _happens(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._action()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def die_at_byte(limit: int) -> None:
    """Have the system write what fits into a file, and then kill this process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def fail_at_byte(limit: int) -> None:
    """Have the system write what fits into a file, and refuse the rest."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _nothing() -> None: ...


class Disturber:
    """Forks runs of a plan's experiment, disturbs them, and has each resumed until its end."""

    def __init__(self, plan: Plan) -> None:
        from fedacg.runs.build import prepare
        from fedacg.runs.runner import play
        from support.runs import tiny

        self._plan, self._folder = plan, Path(plan.folder)
        self._experiment = tiny(self._folder, *plan.settings)
        self._ingredients = prepare(self._experiment)
        self._play = play
        self._chance = random.Random(plan.seed)
        self._operations = self._each_operation()
        self._server = _fork_server() if self._experiment.engine.name == "processes" else None
        self._attempts = count()
        self.report = Report()

    def work(self) -> None:
        whole, run = self._folder / "whole", self._folder / "run-0"
        self._play(self._experiment, self._ingredients, folder=whole)
        while self.report.disturbances < self._plan.disturbances and len(self.report.unexpected) < 5:
            if self._attempt(run, self._way()):
                self.report.differing += outcome(run) != outcome(whole)
                run = self._folder / f"run-{self.report.runs}"
        if self._attempt(run, "none"):
            self.report.differing += outcome(run) != outcome(whole)

    def _way(self) -> str:
        ways = {"kill": ["operation", "operation", "byte", "instant"], "full": ["operation", "byte"]}
        return self._chance.choice(ways.get(self._plan.kind, ["instant", "twice"]))

    def _each_operation(self) -> Iterator[int]:
        """The numbers of the operations in some order, so that none comes again before all have been."""
        while True:
            yield from self._chance.sample(range(1, LAST_OPERATION + 1), LAST_OPERATION)

    def _attempt(self, run: Path, way: str) -> bool:
        """Play a run on, disturbed in this way; whether it got to its end."""
        kind, operation = self._plan.kind, next(self._operations) if way == "operation" else 0
        limit, instant = self._chance.randint(1, LAST_BYTE), self._chance.uniform(0, LAST_INSTANT)
        events, action = (CHANGING, die) if kind == "kill" else (WRITING, refuse)
        preparations: dict[str, Callable[[], None]] = {
            "operation": Operations(run, events, operation, action).install,
            "byte": partial(die_at_byte if kind == "kill" else fail_at_byte, limit),
        }
        prepare = preparations.get(way, _nothing)
        said = self._folder / "said.txt"
        pid = self._fork(run, prepare, said)
        if way in ("instant", "twice"):
            time.sleep(instant)
            number = signal.SIGKILL if kind == "kill" else self._chance.choice(SIGNALS)
            os.kill(pid, number)
            if way == "twice":
                time.sleep(self._chance.uniform(0, LAST_INSTANT / 10))
                os.kill(pid, self._chance.choice([number, signal.SIGINT]))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        words = said.read_text()
        ends = {"kill": {-signal.SIGKILL, -signal.SIGXFSZ}, "full": {1}, "signal": {STOPPED}}[kind]
        if "Traceback" in words or "Exception ignored" in words or (code and (way == "none" or code not in ends)):
            self.report.unexpected.append(f"exit code {code} ({way}) in {run.name}: {words}")
        elif code:
            self.report.ways[way] += 1
        else:
            self.report.runs += 1
        return code == 0

    def _fork(self, run: Path, prepare: Callable[[], None], said: Path) -> int:
        number = next(self._attempts)
        said.touch()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child is ready for them
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return pid
        code = 3
        try:
            for descriptor in (1, 2):
                os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), descriptor)
            if self._server:
                _adopt(self._server, number)
            if self._plan.kind == "signal":
                self._command(run)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            prepare()
            code = self._go_on(run)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 3
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _go_on(self, run: Path) -> int:
        from fedacg.errors import RunError

        try:
            self._play(self._experiment, self._ingredients, folder=run, resume=True)
        except RunError as error:
            if "cannot be" not in str(error):
                raise
            return 1
        return 0

    def _command(self, run: Path) -> NoReturn:
        """Go on with a run by the command line, which is where signals are handled."""
        from fedacg.cli import handle_signals, main

        words = [word for setting in self._plan.settings for word in ("--set", setting)]
        sys.argv = ["fedacg", "run", str(self._folder / "tiny.toml"), "--out", str(run), "--resume", *words]
        handle_signals()  # the first thing that `main` does
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        main()
        sys.exit(0)


def outcome(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The fingerprint of a finished run's model, and its history without seconds and their checksums."""
    lines = [unseal(line, sealed=True) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    history = [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in lines]
    return json.loads((folder / "summary.json").read_text())["vector_sha256"], history


def _fork_server() -> Any:
    """One for all runs: to load torch for each would take seconds."""
    from fedacg.engines.process_pool import ForkServer

    return ForkServer()


def _adopt(server: Any, number: int) -> None:
    """Use the parent's server in a process that was forked; its workers end with this one all the same."""
    from fedacg.engines import process_pool

    server._numbers = count(1000 * number)
    server._process = _Foreign()
    server.loaded = True
    process_pool._servers[os.getpid()] = server


class _Foreign:
    """A process that this one has not started, and cannot wait for."""

    def poll(self) -> None: ...

    def wait(self, timeout: float) -> None: ...


if __name__ == "__main__":
    disturber = Disturber(Plan(**json.load(sys.stdin)))
    disturber.work()
    print(json.dumps(asdict(disturber.report)))
