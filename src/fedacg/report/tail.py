"""The rounds of a run that is going on: only what is new in its metrics.jsonl is read.

Reading a whole file, once, is `metrics.read_metrics`.
"""

from pathlib import Path

from fedacg.core.files import open_regular
from fedacg.errors import InputError
from fedacg.runs.history import History
from fedacg.simulation.metrics import RoundMetrics


class Tail:
    """A metrics.jsonl that grows. A line without its end is one that is being written, and is left for later."""

    def __init__(self, path: Path) -> None:
        self._path, self._sealed = path, False
        self._begin()

    def _begin(self) -> None:
        self.history = History()
        self._offset = 0
        self._last = b""

    def read(self, *, sealed: bool = False) -> History:
        """All rounds so far. A file that is not the one it was, as after a resume, is read from its start.

        With `sealed`, every line must have a checksum.
        """
        self._sealed = sealed
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self._begin()
                    file.seek(0)
                new = file.read()
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read: {error.strerror}") from error
        for line in new[: new.rfind(b"\n") + 1].splitlines(keepends=True):
            if line.strip():
                self._append(line)
            self._offset += len(line)
            self._last = line
        return self.history

    def _append(self, line: bytes) -> None:
        try:
            self.history.append(RoundMetrics.from_json(line, sealed=self._sealed))
        except ValueError as error:
            number = len(self.history) + 1
            raise InputError(f"{self._path}, line {number} cannot be read: {error}") from error
