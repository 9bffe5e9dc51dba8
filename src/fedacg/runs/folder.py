"""The run folder as the one run that holds its lock writes it, atomically; contents.py says what is in it.

The folder is consistent at every instant: kill -9 or a full disk cost the rounds since the last checkpoint. Only
the names in contents.py are ever written or removed.
"""

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.core import files
from fedacg.core.vector import CANONICAL, Layout, pack_vectors
from fedacg.errors import InputError, RunError
from fedacg.methods.rules import released
from fedacg.runs.contents import (
    BEST,
    CHECKPOINT,
    CLIENT_TABLE,
    CLIENTS,
    EXPERIMENT,
    FORMAT,
    LOCK,
    MARKER,
    METRICS,
    MODEL,
    RECORDED,
    SUMMARY,
    Marker,
    check_description,
    check_first_format,
    checksum,
    is_run,
    load_moment,
    read_marker,
)
from fedacg.runs.history import History, read_metrics
from fedacg.simulation.federation import ServerState
from fedacg.simulation.metrics import RoundMetrics

_FILES = (MARKER, EXPERIMENT, METRICS, CHECKPOINT, SUMMARY, MODEL, BEST, CLIENT_TABLE)
_BEFORE_A_RUN = re.compile(
    rf"\.lock|run\.json|federation\.json|\.DS_Store|\.({'|'.join(map(re.escape, _FILES))}|federation\.json)"
    r"\.[0-9]+\.draft"
)
"""Names allowed in a folder in which no run has started yet."""


class RunFolder:
    """A folder that one run writes, locked against a second one until it is closed."""

    def __init__(self, path: Path, layout: Layout = CANONICAL) -> None:
        self.path, self._layout = path, layout
        self.sealed = True
        """Whether every file must have a checksum; not in a run that an older version started."""
        _check_place(path)
        with _writing(path):
            files.make_folder(path)
        self._lock = self._acquire()
        self._metrics: IO[bytes] | None = None

    @property
    def experiment_path(self) -> Path:
        return self.path / EXPERIMENT

    @property
    def metrics_path(self) -> Path:
        return self.path / METRICS

    @property
    def checkpoint_path(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def summary_path(self) -> Path:
        return self.path / SUMMARY

    def begin(self, experiment: Experiment, *, overwrite: bool = False) -> None:
        """Start a new run here; an existing one is replaced only if asked."""
        self._check_links()
        if is_run(self.path) and not overwrite:
            raise InputError(f"{self.path}: holds a run; resume it with --resume or replace it with --overwrite")
        description = experiment.to_toml().encode()
        with _writing(self.path):
            files.remove_drafts(self.path, _FILES, of_living=True)
            for name in (SUMMARY, BEST, CHECKPOINT, METRICS, MODEL, CLIENT_TABLE, EXPERIMENT):
                files.remove(self.path / name)
        with _writing(self.path / MARKER):
            Marker(self._layout.name, checksum(description), older=False).write(self.path)
        with _writing(self.experiment_path):
            files.write_whole(self.experiment_path, description)
        self._open(History())

    def resume(self, experiment: Experiment, bound: str | None = None) -> tuple[ServerState | None, History]:
        """Resume the run in the folder: its last checkpoint, and the rounds up to it.

        The experiment may have more rounds than before, unless `bound` says why not.
        """
        self._check_links()
        if not os.path.lexists(self.experiment_path):
            self.begin(experiment)
            return None, History()
        marker = read_marker(self.path)
        found = Experiment.parse(read_toml(self.experiment_path))
        check_description(self.path, marker)
        longer = found.model_copy(update={"rounds": max(found.rounds, experiment.rounds)})
        difference = longer.difference(experiment)
        if longer.rounds > found.rounds and not difference and bound:
            more = f"rounds is {found.rounds} there and {experiment.rounds} here"
            raise InputError(f"{self.path}: cannot be continued beyond its end: {more}, and {bound}")
        if difference:
            raise InputError(f"{self.path}: holds a different experiment: {'; '.join(difference)}")
        self.sealed = marker is not None and not marker.older
        if marker is None:
            check_first_format(self.path, found, self._layout)
        moment = self._load()
        done = moment.round if moment else 0
        history = History()
        if done:
            # Whatever comes after the checkpoint is run again, and may be in any state after a power failure.
            history = read_metrics(self.metrics_path, sealed=self.sealed, last=done)[0]
        if [metrics.round for metrics in history] != list(range(1, done + 1)):
            raise InputError(f"{self.metrics_path}: has {len(history)} rounds, but the checkpoint has {done}")
        with _writing(self.path / MARKER):
            files.remove_drafts(self.path, _FILES, of_living=True)
            files.remove(self.path / "checkpoint.draft")  # as the first format called it
            description = files.read_whole(self.experiment_path)
            if done < longer.rounds:
                files.remove(self.summary_path)  # the run is not finished any more
            if longer.rounds > found.rounds:
                before, description = checksum(description), longer.to_toml().encode()
                Marker(self._layout.name, before, not self.sealed, checksum(description)).write(self.path)
                files.write_whole(self.experiment_path, description)
            Marker(self._layout.name, checksum(description), older=not self.sealed).write(self.path)
        if history and history.rounds < longer.rounds:
            history.replace_last(_not_last(history[-1], experiment))
        self._open(history)
        return moment, history

    def append(self, metrics: RoundMetrics) -> None:
        """Add a round's line."""
        file = self._metrics
        if file is None:
            raise ValueError("begin or resume comes first")
        with _writing(self.metrics_path):
            file.write(metrics.to_json().encode() + b"\n")
            file.flush()

    @property
    def rounds(self) -> int:
        """The number of rounds with a line."""
        return self.metrics_path.read_bytes().count(b"\n")

    def save(self, moment: ServerState) -> None:
        """Write a checkpoint, replacing the last one."""
        file = self._metrics
        if file is None:
            raise ValueError("begin or resume comes first")
        with _writing(self.checkpoint_path):
            # The lines of the rounds a checkpoint covers reach the disk before it does.
            os.fsync(file.fileno())
            facts = {"format": FORMAT, "round": str(moment.round)}
            content = pack_vectors(self._layout.to_canonical(moment.vectors), facts)
            files.write_whole(self.checkpoint_path, content)

    def write_clients(self, table: str) -> None:
        """Write the results of single clients, replacing the last table."""
        with _writing(self.path / CLIENT_TABLE):
            files.write_whole(self.path / CLIENT_TABLE, table.encode())

    def save_best(self, moment: ServerState) -> None:
        """Save the model of a round beside the checkpoints, replacing the one saved before."""
        model = {"theta": released(moment.vectors), "buffers": moment.vectors["buffers"]}
        with _writing(self.path / BEST):
            facts = {"format": FORMAT, "round": str(moment.round)}
            files.write_whole(self.path / BEST, pack_vectors(self._layout.to_canonical(model), facts))

    def rewrite(self, history: History) -> None:
        """Rewrite all lines, as the last has changed."""
        if self._metrics is not None:
            self._metrics.close()
        self._open(history)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, which marks the run as ended."""
        with _writing(self.summary_path):
            files.write_whole(self.summary_path, files.seal(json.dumps(summary, indent=2)).encode())

    def close(self) -> None:
        """Release the folder."""
        if self._metrics is not None:
            with suppress(OSError):  # a line that could not be written was reported when it was added
                self._metrics.close()
        os.close(self._lock)

    def _acquire(self) -> int:
        path = self.path / LOCK
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        _refuse_link(path)
        with _writing(path):
            lock = os.open(path, flags, 0o666)
        try:
            found = os.fstat(lock)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise InputError(f"{path}: is not a file of this run folder")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = re.match(rb"[0-9]+", os.read(lock, 20))
                process = holder[0].decode() if holder else "unknown"
                raise InputError(f"{self.path}: in use by another run (process {process})") from None
            with _writing(path):
                os.ftruncate(lock, 0)
                os.write(lock, f"{os.getpid()}\n".encode())
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _check_links(self) -> None:
        """Refuse a folder in which one of our names is a link."""
        for name in (*_FILES, CLIENTS, RECORDED):
            _refuse_link(self.path / name)

    def _open(self, history: History) -> None:
        """Keep only the lines of these rounds, ready for the next."""
        with _writing(self.metrics_path):
            lines = "".join(metrics.to_json() + "\n" for metrics in history)
            files.write_whole(self.metrics_path, lines.encode())
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._metrics = os.fdopen(os.open(self.metrics_path, flags), "ab")

    def _load(self) -> ServerState | None:
        if not os.path.lexists(self.checkpoint_path):
            return None
        moment = load_moment(self.path)
        return ServerState(moment.round, self._layout.from_canonical(moment.vectors))


def _not_last(metrics: RoundMetrics, experiment: Experiment) -> RoundMetrics:
    """A round that was evaluated as the last of a run, and no longer is."""
    if metrics.round % experiment.evaluate.every:
        return metrics.unevaluated()
    return metrics.unevaluated(test_only=True) if experiment.evaluate.test == "end" else metrics


def _check_place(path: Path) -> None:
    """Refuse to start a run among other files; nothing has been touched yet."""
    try:
        if not os.path.lexists(path):
            return
        if not path.is_dir():
            raise InputError(f"{path}: is a file; a run is kept in a folder")
        others = sorted(each.name for each in path.iterdir() if not _BEFORE_A_RUN.fullmatch(each.name))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if others and not is_run(path):
        some = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        raise InputError(f"{path}: is not empty and holds no run ({some}); choose another folder for the run")


def _refuse_link(path: Path) -> None:
    if files.is_link(path):
        raise InputError(f"{path}: is a link; the files of a run folder are its own")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Run a file operation; a failure raises RunError with the path."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be written: {error}") from error
