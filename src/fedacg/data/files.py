"""Published files: where the data root is, reading them, and the words for files that are missing or damaged.

Nothing here knows a file format; the readers of the data sets do. What to do about a damaged file is said where it
is known whether there is another copy (sources/base.py).
"""

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from fedacg.data import origins
from fedacg.errors import DataDamaged, DataMissing, InputError

_DIGESTS = {32: "md5", 64: "sha256"}
"""Which checksum it is, by its length."""


def data_root() -> Path:
    """The folder that holds the data sets: $FEDACG_DATA, or ~/.cache/fedacg."""
    return Path(os.environ.get("FEDACG_DATA") or "~/.cache/fedacg").expanduser()


def homes() -> tuple[Path, Path]:
    """Where prepared data may lie: in the data root, or in the user's cache where that cannot be written."""
    return data_root() / "prepared", Path("~/.cache/fedacg/prepared").expanduser()


def writable_home() -> Path:
    """The first home of prepared data that can be made and written."""
    for home in homes():
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK):
            return home
    raise InputError(f"{home}: cannot be written, and neither can {data_root()} (FEDACG_DATA sets the folder)")


def missing(name: str, looked: Iterable[Path], wanted: str) -> DataMissing:
    """The error for a data set of which there is no trace."""
    places = "\n".join(f"  {place}" for place in looked)
    return DataMissing(
        f"data set {name!r} was not found. Looked for\n{places}\n"
        f"Put {wanted} in one of these places (FEDACG_DATA sets the folder){origins.or_get(name)}"
    )


def damaged(name: str, path: Path, what: str) -> DataDamaged:
    """The error for a file that is not what was published."""
    return DataDamaged(f"data set {name!r}: {path} {what}")


def unreadable(name: str, path: Path, error: OSError) -> DataDamaged:
    """The error for a file or a folder that the system does not let us read."""
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
    """Whether there is such a file; that it cannot be known is an error."""
    return stat.S_ISREG(_mode(name, path))


def is_dir(name: str, path: Path) -> bool:
    """Whether there is such a folder; that it cannot be known is an error."""
    return stat.S_ISDIR(_mode(name, path))


def entries(name: str, folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, in the order of names, without what begins with a dot (`._*` of macOS, for one)."""
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
    """The checksum of the same kind as another; it guards against accidents, not against malice."""
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
    """How a file differs that has another checksum than the published one."""
    return f"was altered: its {_DIGESTS[len(published)]} is {found}, the published one {published}"


def wrong_size(found: int, size: int) -> str:
    """How a file differs that has another size than the published one."""
    kind = "is cut short" if found < size else "is too long"
    return f"{kind}: {found} bytes where there should be {size}"
