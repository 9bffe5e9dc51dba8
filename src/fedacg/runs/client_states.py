"""Client states on disk: their size grows with the clients that have taken part, not with N.

A visit writes a file of its own, `SHARD/CLIENT-ROUND.safetensors`, and never touches an older one. So a run that
goes back to the checkpoint of a round finds the states of that round, whatever was written after it. A shard
holds a thousand clients, so that no folder gets long. A run without a folder uses a temporary one;
start-up removes what killed processes left.

Only a checkpoint depends on the disk. Until one is written, states stay in memory as far as there is room, and
those outdated by then are dropped, not written.
"""

import fcntl
import os
import re
import stat
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from safetensors import SafetensorError

from fedacg.core import files
from fedacg.core.round import Message
from fedacg.core.vector import CANONICAL, Layout, load_vectors, pack_vectors
from fedacg.errors import InputError, RunError

_PREFIX, _LOCK = "fedacg-", ".lock"
_NAME = re.compile(r"fedacg-[a-z0-9_]{8}")
_SETTLED = 60.0
"""Seconds after which a folder without a lock counts as left over: its process may just be starting."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that exists while the block lasts."""
    _clear(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        lock = os.open(Path(name) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


def _clear(place: Path) -> None:
    """Remove scratch folders of ended processes; unreadable ones belong to someone else."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):
                    _clear_one(Path(entry.path))


def _clear_one(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or time.time() - found.st_mtime < _SETTLED:
        return
    if {path.name for path in folder.iterdir()} - {_LOCK, "clients"} or files.is_link(folder / "clients"):
        return  # another program's folder by the same name
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError while its process lives
        rmtree(folder)  # ours as a whole; rmtree does not follow links
    finally:
        os.close(lock)


_SHARD = 1000
_FOLDER = re.compile(r"[0-9]{1,18}")
_VISIT = re.compile(r"([0-9]{1,18})-([0-9]{1,18})\.safetensors")
_OLDER_VISIT = re.compile(r"([0-9]{1,18})\.safetensors")
"""In the first format, below a folder for every client."""


ROOM = 2**28
"""Bytes of states that a run keeps in memory, at most."""


class ClientStates:
    """The states of clients below one folder; only files with names of the kind above are touched there.

    Those written last are in memory too, as many as have room; without any, each is on the disk at once.
    """

    def __init__(self, folder: Path, layout: Layout = CANONICAL, *, sealed: bool = True, room: int = 0) -> None:
        self._folder, self._layout, self._sealed, self._room = folder, layout, sealed, room
        self._near: dict[tuple[int, int], Message] = {}
        """States in memory by client and round, the oldest first."""
        self._unwritten: set[tuple[int, int]] = set()
        """Those of them that are not on the disk."""
        self._visits: defaultdict[int, list[int]] = defaultdict(list)
        """The rounds whose states are there, by client, in ascending order."""
        self._unsettled: set[int] = set()
        """Clients with visits that no checkpoint covers yet."""
        self._covered = 0
        """The round of the last checkpoint."""

    def rewind(self, round: int) -> None:
        """Go back to the states after a round; 0 removes all."""
        self._covered = round
        for key in [key for key in self._unwritten if key[1] <= round]:
            self._put(*key)
        for key in list(self._near):
            self._drop(*key)
        self._visits.clear()
        self._unsettled.clear()
        try:
            for client, visit in self._found():
                self._visits[client].append(visit)
            for client, visits in list(self._visits.items()):
                # Visits before the last were left by a process that was killed before it could forget them.
                kept = sorted(visit for visit in visits if 0 < visit <= round)[-1:]
                for visit in set(visits) - set(kept):
                    files.remove(self._path(client, visit))
                if kept:
                    self._visits[client] = kept
                else:
                    del self._visits[client]
            if self._folder.is_dir() and not self._visits:
                for shard in _entries(self._folder, _FOLDER):
                    files.remove_if_empty(shard)
                files.remove_if_empty(self._folder)
        except OSError as error:
            raise RunError(f"{self._folder}: cannot be written: {error}") from error

    @property
    def clients(self) -> set[int]:
        """The clients with a state."""
        return set(self._visits)

    def last(self, client: int) -> int:
        """The round of a client's last visit, 0 before its first."""
        return self._visits[client][-1] if client in self._visits else 0

    def read(self, client: int) -> Message:
        """What a client kept from its last visit; empty before its first."""
        visits = self._visits.get(client)
        if not visits:
            return {}
        if (client, visits[-1]) in self._near:
            return {name: vector.clone() for name, vector in self._near[client, visits[-1]].items()}
        path = self._path(client, visits[-1])
        vectors, facts = load_vectors(path, sealed=self._sealed)
        if facts and facts != _facts(client, visits[-1]):
            raise InputError(f"{path}: damaged: is not the state of this client and round")
        return self._layout.from_canonical(vectors)

    def write(self, round: int, client: int, state: Message) -> None:
        """Store what a client keeps from a round."""
        self._drop(client, round)
        self._supersede(client, round)
        self._near[client, round] = {name: vector.clone() for name, vector in state.items()}
        self._unwritten.add((client, round))
        self._room -= _bytes(state)
        while self._room < 0 and self._near:
            oldest = next(iter(self._near))
            if oldest in self._unwritten:
                self._put(*oldest)
            self._drop(*oldest)
        if round not in self._visits[client]:
            self._visits[client].append(round)
        self._unsettled.add(client)

    def settle(self, round: int) -> None:
        """Sync the states after a round to disk, before a checkpoint relies on them."""
        states: list[Path] = []
        try:
            for client in self._unsettled:
                for visit in [visit for visit in self._visits[client] if visit <= round][-1:]:
                    if (client, visit) in self._unwritten:
                        self._put(client, visit)
                    states.append(self._path(client, visit))
            folders = {path.parent for path in states} | ({self._folder, self._folder.parent} if states else set())
            files.sync_all([*states, *sorted(folders, reverse=True)])
        except OSError as error:
            raise RunError(f"{self._folder}: cannot be written: {error}") from error

    def forget(self, round: int) -> None:
        """Remove states that are no longer needed, now that a checkpoint of this round is on disk."""
        self._covered = round
        for client in list(self._unsettled):
            visits = self._visits[client]
            covered = [visit for visit in visits if visit <= round]
            for visit in covered[:-1]:
                self._remove(client, visit)
            self._visits[client] = covered[-1:] + [visit for visit in visits if visit > round]
            if visits[-1] <= round:
                self._unsettled.discard(client)

    def _put(self, client: int, round: int) -> None:
        """Write a state that is in memory only."""
        path, state = self._path(client, round), self._layout.to_canonical(self._near[client, round])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_new(path, pack_vectors(state, _facts(client, round)))
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path}: cannot be written: {error}") from error
        self._unwritten.discard((client, round))

    def _drop(self, client: int, round: int) -> None:
        """Give back the memory of a state, if it takes any."""
        state = self._near.pop((client, round), None)
        if state is not None:
            self._room += _bytes(state)
            self._unwritten.discard((client, round))

    def _supersede(self, client: int, round: int) -> None:
        """Remove the states that no checkpoint asks for, neither the last nor the next, now that a round writes.

        So a client has three at most, however long it takes until there is a checkpoint.
        """
        # The earliest checkpoint that may still come is that of the round before.
        for visit in [visit for visit in self._visits[client] if visit < round][:-1]:
            if visit > self._covered:
                self._remove(client, visit)
                self._visits[client].remove(visit)

    def _remove(self, client: int, round: int) -> None:
        """Remove a state from memory and disk."""
        if (client, round) not in self._unwritten:
            files.remove(self._path(client, round))  # gone if Ctrl-C came in the middle of this
        self._drop(client, round)

    def _path(self, client: int, round: int) -> Path:
        return self._folder / str(client // _SHARD) / f"{client}-{round}.safetensors"

    def _found(self) -> Iterator[tuple[int, int]]:
        """The clients and rounds whose states are there."""
        if not self._folder.is_dir():
            return
        self._rename_first_format()
        for shard in _entries(self._folder, _FOLDER):
            for path in _entries(shard, _VISIT) if shard.is_dir() else ():
                client, visit = map(int, path.stem.split("-"))
                if path == self._path(client, visit):
                    yield client, visit

    def _rename_first_format(self) -> None:
        for folder in _entries(self._folder, _FOLDER):
            for path in _entries(folder, _OLDER_VISIT) if folder.is_dir() else ():
                renamed = self._path(int(folder.name), int(path.stem))
                renamed.parent.mkdir(exist_ok=True)
                path.rename(renamed)
            files.remove_if_empty(folder)


def _entries(folder: Path, names: re.Pattern[str]) -> list[Path]:
    """Entries of a folder with such names; a link is refused, as it leads out of the folder."""
    found = sorted(path for path in folder.iterdir() if names.fullmatch(path.name))
    for path in found:
        if files.is_link(path):
            raise InputError(f"{path}: is a link; a run folder must have its own files")
    return found


def _facts(client: int, round: int) -> dict[str, str]:
    return {"client": str(client), "round": str(round)}


def _bytes(state: Message) -> int:
    return sum(vector.nbytes for vector in state.values())
