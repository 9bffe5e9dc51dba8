"""The files that a copy of a data set consists of, and two ways to recognise them.

The stamp is cheap: names, sizes and times, which change whenever a file is written, in place too. The digest reads
everything, and is the same wherever the files lie and whenever they were copied there.
"""

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedacg.data.files import unreadable
from fedacg.data.progress import progress

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Listing:
    """Files by their names below a folder."""

    dataset: str
    copy: Path
    """The folder, archive or file that holds the data set."""
    base: Path
    names: tuple[str, ...]

    def stamp(self) -> str:
        """What changes when a file is added, removed, renamed or written. Moving the folder leaves it alone."""
        return self._stat()[0]

    @cached_property
    def first_stamp(self) -> str:
        """The stamp when it was first asked for: to look at 200,000 files takes a second."""
        return self.stamp()

    def digest(self, version: int) -> str:
        """What the contents and the version of what is made of them come to."""
        found = hashlib.sha256(f"{version}".encode())
        with progress(f"reading {self.dataset}", self._stat()[1] >> 20, "MB") as advance:
            unshown = 0
            for name in sorted(self.names):
                own = hashlib.sha256()
                try:
                    with open(self._path(name), "rb") as file:  # noqa: PTH123
                        while block := file.read(_BLOCK):
                            own.update(block)
                            unshown += len(block)
                except OSError as error:
                    raise unreadable(self.dataset, Path(self._path(name)), error) from None
                found.update(os.fsencode(name) + b"\0" + own.digest())
                advance(unshown >> 20)
                unshown &= (1 << 20) - 1
        return found.hexdigest()

    def _stat(self) -> tuple[str, int]:
        """The stamp, and the size of all files."""
        stamp, size = hashlib.sha256(), 0
        for name in sorted(self.names):
            try:
                facts = os.stat(self._path(name))  # noqa: PTH116
            except OSError as error:
                raise unreadable(self.dataset, Path(self._path(name)), error) from None
            size += facts.st_size
            # The time of the last change of the inode cannot be set, so that contents written anew with their old
            # time are noticed, too.
            times = f"\0{facts.st_size}\0{facts.st_mtime_ns}\0{facts.st_ctime_ns}\0"
            stamp.update(os.fsencode(name) + times.encode())
        return stamp.hexdigest(), size

    def _path(self, name: str) -> str:
        return f"{self.base}/{name}"  # a Path for each of 200,000 images would take a second
