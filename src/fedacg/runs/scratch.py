"""A temporary folder for a run without one of its own; start-up clears what processes that were killed left.

A living process holds a lock on its folder. The system lets go of it when the process ends, however it ends.
"""

import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from fedacg.core import files

_PREFIX, _LOCK = "fedacg-", ".lock"
_NAME = re.compile(r"fedacg-[a-z0-9_]{8}")
_SETTLED = 60.0
"""Seconds after which a folder whose lock is free is taken for left over: its process may just be starting."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that is there while the block lasts."""
    _clear(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        lock = os.open(Path(name) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


def _clear(place: Path) -> None:
    """Remove the scratch folders of processes that are no more; what cannot be looked at is someone else's."""
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
