"""The run folder: what is written, atomically, and read back.

    experiment.toml          the complete description
    metrics.jsonl            a line a round
    checkpoint.safetensors   the server's vectors and the round they belong to
    summary.json             when the run has ended
    clients/                 what clients keep between rounds, for methods that need it (states.py)
    recorded/                the local models of rounds that were asked for (recording.py)

The folder is consistent at every instant: kill -9 or a full disk cost the rounds since the last checkpoint.
"""

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.errors import InputError, RunError
from fedacg.runs.history import History, read_metrics
from fedacg.simulation.federation import ServerState
from fedacg.simulation.metrics import RoundMetrics

_FORMAT = "1"


class RunFolder:
    """A folder that one run writes, locked against a second one until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise InputError(f"{path}: is a file; a run is kept in a folder")
        _guard(path, lambda: path.mkdir(parents=True, exist_ok=True))
        self._lock = self._acquire()
        self._metrics: IO[str] | None = None

    @property
    def experiment_path(self) -> Path:
        return self.path / "experiment.toml"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def summary_path(self) -> Path:
        return self.path / "summary.json"

    def begin(self, experiment: Experiment, *, overwrite: bool = False) -> None:
        """Start a new run here; one that is here already is only replaced when asked."""
        if self.experiment_path.exists():
            if not overwrite:
                raise InputError(f"{self.path}: holds a run; go on with --resume or replace it with --overwrite")
            for path in (self.summary_path, self.checkpoint_path, self.metrics_path, self.experiment_path):
                path.unlink(missing_ok=True)
        write_whole(self.experiment_path, experiment.to_toml().encode())
        self._open(History())

    def resume(self, experiment: Experiment) -> tuple[ServerState | None, History]:
        """Take up the run that is here: its last checkpoint, and the rounds up to it."""
        if not self.experiment_path.exists():
            self.begin(experiment)
            return None, History()
        found = Experiment.parse(read_toml(self.experiment_path))
        difference = found.difference(experiment)
        if difference:
            raise InputError(f"{self.path}: the run there is another experiment: {'; '.join(difference)}")
        moment = self._load()
        done = moment.round if moment else 0
        written = read_metrics(self.metrics_path)[0] if self.metrics_path.exists() else History()
        history = History(metrics for metrics in written if metrics.round <= done)
        if len(history) != done:
            raise InputError(
                f"{self.metrics_path}: has {len(history)} of the {done} rounds that the checkpoint has"
            )
        self._open(history)
        return moment, history

    def append(self, metrics: RoundMetrics) -> None:
        """Add a round's line."""
        file = self._metrics
        if file is None:
            raise ValueError("begin or resume comes first")
        _guard(self.metrics_path, lambda: (file.write(metrics.to_json() + "\n"), file.flush()))

    @property
    def rounds(self) -> int:
        """How many rounds have their line."""
        return self.metrics_path.read_bytes().count(b"\n")

    def save(self, moment: ServerState) -> None:
        """Write a checkpoint in place of the last one."""
        file = self._metrics
        if file is None:
            raise ValueError("begin or resume comes first")
        state = {name: vector.contiguous() for name, vector in moment.vectors.items()}
        metadata = {"format": _FORMAT, "round": str(moment.round)}

        def write() -> None:
            # The lines of the rounds a checkpoint covers reach the disk before it does.
            os.fsync(file.fileno())
            draft = self.checkpoint_path.with_suffix(".draft")
            save_file(state, draft, metadata=metadata)
            _settle(draft, self.checkpoint_path)

        _guard(self.checkpoint_path, write)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, which marks the run as ended."""
        write_whole(self.summary_path, (json.dumps(summary, indent=2) + "\n").encode())

    def close(self) -> None:
        """Let go of the folder."""
        if self._metrics is not None:
            with suppress(OSError):  # a line that could not be written was reported when it was added
                self._metrics.close()
        self._lock.close()

    def _acquire(self) -> IO[str]:
        path = self.path / ".lock"
        try:
            lock = path.open("a+")
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise InputError(f"{self.path}: in use by another run (process {holder})") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock

    def _open(self, history: History) -> None:
        """Leave the lines of these rounds and nothing else, ready for the next."""
        write_whole(self.metrics_path, "".join(metrics.to_json() + "\n" for metrics in history).encode())
        self._metrics = self.metrics_path.open("a", encoding="utf-8")

    def _load(self) -> ServerState | None:
        if not self.checkpoint_path.exists():
            return None
        return load_moment(self.path)


def is_finished(folder: Path, experiment: Experiment) -> bool:
    """Whether this very experiment has been run to its end there."""
    if not (folder / "summary.json").exists():
        return False
    return not Experiment.parse(read_toml(folder / "experiment.toml")).difference(experiment)


def load_moment(folder: Path) -> ServerState:
    """The server's vectors in a run folder's checkpoint."""
    path = folder / "checkpoint.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a checkpoint that can be read: {error}") from None
    if metadata.get("format") != _FORMAT:
        raise InputError(f"{path}: format {metadata.get('format')!r}, this version reads {_FORMAT!r}")
    return ServerState(int(metadata["round"]), state)


def write_whole(path: Path, content: bytes) -> None:
    """Put a file in place whole, or not at all."""
    draft = path.with_name(path.name + ".draft")

    def write() -> None:
        draft.write_bytes(content)
        _settle(draft, path)

    _guard(path, write)


def _settle(draft: Path, path: Path) -> None:
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def _guard(path: Path, action: Callable[[], object]) -> None:
    """Do something to a file; a disk that will not have it is told plainly."""
    try:
        action()
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be written: {error}") from error
