"""Turns: peers run side by side, and each starts a round only when asked.

The machine's speed drifts, so compared rounds should be close together in time. The peers' side is `Turns`, the
other is `Player`. A round's seconds are those of the peer's whole loop, from the request to the round's end.
"""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

PATIENCE = 600.0
"""Seconds that a start or a round may take."""
FAREWELL = 30.0
"""Seconds that a peer may take to end."""


class Turns:
    """A peer's side: it reports every finished round and waits for its next turn."""

    def __init__(self, address: str) -> None:
        self._address = address
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        self._line = _Line(connection)
        self.begin()

    def begin(self) -> None:
        """The clock of a round starts."""
        self._begin = perf_counter()

    def played(self) -> None:
        """A round is over; return when the next may begin."""
        self._line.say(perf_counter() - self._begin)
        self._line.hear()
        self.begin()

    def finish(self, theta: NDArray[Any], versions: Mapping[str, str]) -> None:
        """All rounds are done: hand over the model and the versions."""
        np.save(f"{self._address}.npy", theta)
        self._line.say(dict(versions))


class Player:
    """A peer as a process that runs rounds on demand; the first is done once it is made."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], address: str, log: Path) -> None:
        self._address, self._log = address, log
        self._line: _Line | None = None
        begin = perf_counter()
        with socket.socket(socket.AF_UNIX) as door, log.open("wb") as output:
            door.bind(address)
            door.listen(1)
            door.settimeout(0.5)
            self._process = subprocess.Popen(
                [*command, address],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._line = self._accept(door)
                self._hear()
            except BaseException:
                self.close()
                raise
        self.start = perf_counter() - begin
        """Seconds until the end of the first round."""

    def round(self) -> float:
        """Run one more; return its seconds."""
        return float(self._ask())

    def memory(self) -> int:
        """Bytes of the process and all below it, what they share counted once."""
        return sum(map(_proportional, _tree(self._process.pid)))

    def finish(self) -> tuple[NDArray[Any], dict[str, str]]:
        """The model after the last round, and versions; the process ends."""
        versions = self._ask()
        self._process.wait(PATIENCE)
        return np.load(f"{self._address}.npy"), versions

    def rest(self) -> NDArray[Any]:
        """Run all rounds that are left, however many; the model after the last."""
        while not isinstance(self._ask(), dict):
            pass
        self._process.wait(PATIENCE)
        return np.load(f"{self._address}.npy")  # type: ignore[no-any-return]

    def kill(self) -> None:
        """End the process and those it started at once, as a crash would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the process, if it is still there: a peer that nobody listens to ends by itself, and what it started
        with it."""
        if self._line:
            self._line.close()
        try:
            self._process.wait(FAREWELL if self._line else 0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _accept(self, door: socket.socket) -> "_Line":
        begin = perf_counter()
        while self._process.poll() is None and perf_counter() - begin < PATIENCE:
            with suppress(TimeoutError):
                connection, _ = door.accept()
                connection.settimeout(PATIENCE)
                return _Line(connection)
        raise self._trouble("did not begin")

    def _ask(self) -> Any:
        assert self._line
        with suppress(BrokenPipeError):  # that it has ended is found when listening
            self._line.say("go")
        return self._hear()

    def _hear(self) -> Any:
        assert self._line
        try:
            return self._line.hear()
        except (EOFError, OSError) as error:
            raise self._trouble("stopped") from error

    def _trouble(self, what: str) -> RuntimeError:
        tail = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-50:]
        return RuntimeError("\n".join([f"{self._log.stem} {what}; the end of {self._log}:", *tail]))


def _tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += [int(child) for child in task.read_text().split()]
    return [pid, *(below for child in children for below in _tree(child))]


def _proportional(pid: int) -> int:
    """The proportional set size, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has just ended
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class _Line:
    """Messages as lines of JSON, over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        with connection:  # which stays open as long as the files
            self._input = connection.makefile("r", encoding="utf-8")
            self._output = connection.makefile("w", encoding="utf-8")

    def say(self, message: object) -> None:
        self._output.write(json.dumps(message) + "\n")
        self._output.flush()

    def hear(self) -> Any:
        if line := self._input.readline():
            return json.loads(line)
        raise EOFError

    def close(self) -> None:
        for file in (self._input, self._output):
            with suppress(OSError):
                file.close()
