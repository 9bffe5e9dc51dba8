"""Published files: the data root, reading them, and the errors for files that are missing or damaged.

A listing names the files that a copy of a data set consists of, and recognises them by stamp or by contents. What
was found when a set was last read is kept, so that a list of data sets needs no reading.

Nothing here knows a file format; the readers of the data sets do. Advice on a damaged file comes from
sources/base.py, which knows whether there is another copy.
"""

import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedacg.data import origins
from fedacg.data.examples import Origin
from fedacg.errors import DataDamaged, DataMissing, InputError

EVERY = 5.0
"""Seconds between progress lines without a terminal; shorter work prints nothing there."""


@contextmanager
def progress(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Progress on stderr; yields a function that advances it by a number of units."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(title, total, unit)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


class _Lines:
    def __init__(self, title: str, total: int, unit: str) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done, self._shown = 0, monotonic()

    def __call__(self, count: int) -> None:
        self._done += count
        if monotonic() - self._shown >= EVERY:
            self._shown = monotonic()
            print(f"{self._title}: {self._done} of {self._total} {self._unit}", file=sys.stderr, flush=True)


_DIGESTS = {32: "md5", 64: "sha256"}
"""The kind of a checksum, by its length."""


def data_root() -> Path:
    """The folder that holds the data sets: $FEDACG_DATA, or ~/.cache/fedacg."""
    return Path(os.environ.get("FEDACG_DATA") or "~/.cache/fedacg").expanduser()


def homes() -> tuple[Path, Path]:
    """Folders for prepared data: the data root, or the user's cache if that cannot be written."""
    return data_root() / "prepared", Path("~/.cache/fedacg/prepared").expanduser()


def writable_home() -> Path:
    """The first of these folders that can be made and written."""
    for home in homes():
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK):
            return home
    raise InputError(f"{home}: cannot be written, and neither can {data_root()} (FEDACG_DATA sets the folder)")


def missing(name: str, looked: Iterable[Path], wanted: str) -> DataMissing:
    """The error for a data set that was not found."""
    places = "\n".join(f"  {place}" for place in looked)
    return DataMissing(
        f"data set {name!r} was not found. Looked for:\n{places}\n"
        f"Put {wanted} in one of these places (FEDACG_DATA sets the folder){origins.or_get(name)}"
    )


def damaged(name: str, path: Path, what: str) -> DataDamaged:
    """The error for a file that differs from the published one."""
    return DataDamaged(f"data set {name!r}: {path} {what}")


def unreadable(name: str, path: Path, error: OSError) -> DataDamaged:
    """The error for a file or folder that cannot be read."""
    return damaged(name, path, f"cannot be read ({error.strerror or error})")


def read_bytes(name: str, path: Path) -> bytes:
    """The contents of a file of a data set."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise damaged(name, path, "is missing") from None
    except OSError as error:
        raise unreadable(name, path, error) from None


def is_file(name: str, path: Path) -> bool:
    """Whether there is such a file; raises an error if that cannot be determined."""
    return stat.S_ISREG(_mode(name, path))


def is_dir(name: str, path: Path) -> bool:
    """Whether there is such a folder; raises an error if that cannot be determined."""
    return stat.S_ISDIR(_mode(name, path))


def entries(name: str, folder: Path) -> list[os.DirEntry[str]]:
    """The contents of a folder by name, without names that begin with a dot (such as `._*` of macOS)."""
    try:
        with os.scandir(folder) as found:
            visible = [entry for entry in found if not entry.name.startswith(".")]
    except FileNotFoundError:
        raise damaged(name, folder, "is missing") from None
    except OSError as error:
        raise unreadable(name, folder, error) from None
    return sorted(visible, key=lambda entry: entry.name)


def _mode(name: str, path: Path) -> int:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise unreadable(name, path, error) from None


def checksum(data: bytes, like: str) -> str:
    """A checksum of the same kind as another; it guards against accidents, not against malice."""
    return hashlib.new(_DIGESTS[len(like)], data, usedforsecurity=False).hexdigest()


def file_checksum(name: str, path: Path, like: str) -> str:
    """The checksum of a whole file, of the same kind as another."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(
                file, lambda: hashlib.new(_DIGESTS[len(like)], usedforsecurity=False)
            ).hexdigest()
    except OSError as error:
        raise unreadable(name, path, error) from None


def altered(found: str, published: str) -> str:
    """The difference of a file whose checksum is not the published one."""
    return f"was altered: its {_DIGESTS[len(published)]} is {found}, the published one is {published}"


def wrong_size(found: int, size: int) -> str:
    """The difference of a file whose size is not the published one."""
    kind = "is cut short" if found < size else "is too long"
    return f"{kind}: {found} bytes where there should be {size}"


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
        """Changes when a file is added, removed, renamed or written, but not when the folder is moved."""
        return self._stat()[0]

    @cached_property
    def first_stamp(self) -> str:
        """The stamp, computed once: checking 200,000 files takes a second."""
        return self.stamp()

    def digest(self, version: int) -> str:
        """A digest of the contents and of the preparation's version."""
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
            # The inode's change time cannot be set, so contents rewritten with their old time are noticed too.
            times = f"\0{facts.st_size}\0{facts.st_mtime_ns}\0{facts.st_ctime_ns}\0"
            stamp.update(os.fsencode(name) + times.encode())
        return stamp.hexdigest(), size

    def _path(self, name: str) -> str:
        return f"{self.base}/{name}"  # a Path for each of 200,000 images would take a second


def remember(listing: Listing, origin: Origin) -> None:
    """Remember what was read, if the folder can be written."""
    if recall(listing) == origin:
        return
    try:
        path = _path(writable_home(), listing)
        with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            json.dump({"stamp": listing.first_stamp, **asdict(origin)}, file)
        Path(file.name).replace(path)
    except (OSError, InputError):
        pass  # nothing depends on it


def recall(listing: Listing) -> Origin | None:
    """What was read from these files; None if they were not read, or have changed since."""
    for home in homes():
        try:
            tree = json.loads(_path(home, listing).read_text())
            if tree.pop("stamp") == listing.first_stamp:
                origin = Origin(**tree)
                return replace(origin, differences=tuple(origin.differences))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return None


def _path(home: Path, listing: Listing) -> Path:
    return home / f"{listing.dataset}.counts.json"
