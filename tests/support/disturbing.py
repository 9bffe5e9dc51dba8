"""Runs that are disturbed: `python -m support.disturbing` with a description as JSON on standard input.

Each run is forked from this process, which has torch loaded and everything prepared, so that a disturbance costs tens
of milliseconds. What happened is printed as JSON. Tests call `disturb`.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

WRITING = {"open", "os.mkdir"}
"""Audit events that a full disk refuses; fsync is added to them."""
CHANGING = WRITING | {"os.rename", "os.remove", "os.rmdir", "os.truncate"}
"""Audit events that change files."""
LONGEST = 90
"""A run is disturbed at one of its first so many operations, or after as many milliseconds."""
LARGEST = 6000
"""Or where a file gets longer than some number of bytes up to this."""
WAYS = {"kill": ["byte", "instant"], "full": ["byte"]}
"""Ways to disturb beside that at an operation."""
ENDS = {"kill": {-signal.SIGKILL, -signal.SIGXFSZ}, "full": {1}}
"""How a run ends that was disturbed."""


@dataclass(frozen=True)
class Plan:
    """What is to be run and how it is disturbed."""

    folder: str
    settings: list[str]
    kind: Literal["kill", "full"]
    disturbances: int
    seed: int


@dataclass
class Report:
    """What came of it."""

    at_operations: int = 0
    at_bytes: int = 0
    """In the middle of a file."""
    at_instants: int = 0
    runs: int = 0
    """Runs that were played to their end after some disturbances."""
    differing: int = 0
    """Runs whose model, or whose history but for the seconds, is not that of the undisturbed one."""
    unexpected: list[str] = field(default_factory=list)
    """Ends of a process that nothing explains."""

    @property
    def disturbances(self) -> int:
        return self.at_operations + self.at_bytes + self.at_instants


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
    assert "Traceback" not in done.stderr, done.stderr
    return Report(**json.loads(done.stdout))


class Operations:
    """Counts the operations on files below a folder, and does something at one of them, and at all after it."""

    def __init__(self, folder: str, events: set[str], number: int, action: Callable[[], None]) -> None:
        self._folder, self._events, self._left, self._action = folder, events, number, action

    def install(self) -> None:
        """For the rest of this process's life."""
        sys.addaudithook(self._heard)
        fsync = os.fsync

        def counted(descriptor: int) -> None:
            self._happens()
            fsync(descriptor)

        os.fsync = counted

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in self._events and str(arguments[0]).startswith(self._folder):
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


def play_plan(plan: Plan) -> Report:
    """Disturb runs of the plan until it was done often enough; each is resumed until its end."""
    from fedacg.runs.build import prepare
    from fedacg.runs.runner import play
    from support.runs import tiny

    folder = Path(plan.folder)
    experiment = tiny(folder, *plan.settings)
    ingredients = prepare(experiment)
    server = _fork_server() if experiment.engine.name == "processes" else None
    chance = random.Random(plan.seed)
    whole = play(experiment, ingredients, folder=folder / "whole", overwrite=True)
    expected = _outcome(folder / "whole")
    assert expected[0] == whole.summary["vector_sha256"]
    report = Report()
    run = folder / "run-0"

    def attempt(number: int, prepare_child: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 3
        try:
            if server:
                _adopt(server, number)
            prepare_child()
            play(experiment, ingredients, folder=run, resume=True)
            code = 0
        except BaseException as error:
            if type(error).__name__ == "RunError" and "cannot be" in str(error):
                code = 1
            else:
                traceback.print_exc()
        finally:
            os._exit(code)

    for number in count():
        done = report.disturbances
        if done >= plan.disturbances and report.runs:
            return report
        operation, moment = chance.randint(1, LONGEST), chance.uniform(0, LONGEST / 1000)
        limit = chance.randint(1, LARGEST)
        last = done >= plan.disturbances
        way = "none" if last else chance.choice(["operation", "operation", *WAYS[plan.kind]])

        def prepare_child(way: str = way, operation: int = operation, limit: int = limit) -> None:
            if way == "operation":
                events, action = (CHANGING, die) if plan.kind == "kill" else (WRITING, refuse)
                Operations(str(run), events, operation, action).install()
            elif way == "byte":
                # The system writes what fits, and then kills the process or refuses the rest.
                if plan.kind == "kill":
                    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        pid = attempt(number, prepare_child)
        if way == "instant":
            time.sleep(moment)
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code in ENDS[plan.kind] and way != "none":
            report.at_operations += way == "operation"
            report.at_bytes += way == "byte"
            report.at_instants += way == "instant"
        elif code == 0:
            report.runs += 1
            report.differing += _outcome(run) != expected
            run = folder / f"run-{report.runs}"
        else:
            report.unexpected.append(f"exit code {code} ({way}) in {run.name}")
            if len(report.unexpected) > 5:
                return report


def _outcome(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The fingerprint of a finished run's model, and its history without the seconds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    history = [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in lines]
    return json.loads((folder / "summary.json").read_text())["vector_sha256"], history


def _fork_server() -> Any:
    """One for all runs: loading torch for each would take seconds."""
    from fedacg.engines.process_pool import ForkServer

    return ForkServer()


def _adopt(server: Any, number: int) -> None:
    """Use the parent's server in a process that was forked; its workers end with this one all the same."""
    from fedacg.engines import process_pool

    server._numbers = count(1000 * number)
    server.loaded = True
    process_pool._servers[os.getpid()] = server
    server._process = _Other()


class _Other:
    """A process that this one has not started: it cannot be waited for."""

    def poll(self) -> None: ...

    def wait(self, timeout: float) -> None: ...


if __name__ == "__main__":
    print(json.dumps(asdict(play_plan(Plan(**json.load(sys.stdin))))))
