"""Published files: where the data root is, and the words for files that are missing or damaged.

Nothing here knows a file format; the readers of the data sets do.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from fedacg.errors import DataMissing, InputError


def data_root() -> Path:
    """The folder that holds the data sets: $FEDACG_DATA, or ~/.cache/fedacg."""
    return Path(os.environ.get("FEDACG_DATA") or "~/.cache/fedacg").expanduser()


def md5(data: bytes) -> str:
    """The checksum that the distributors publish; it guards against accidents, not against malice."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def missing(name: str, looked: Iterable[Path], wanted: str) -> DataMissing:
    """The error for a data set of which there is no trace."""
    places = "\n".join(f"  {place}" for place in looked)
    return DataMissing(
        f"data set {name!r} was not found. Looked for\n{places}\n"
        f"Put {wanted} in one of these places (FEDACG_DATA sets the folder), or run: fedacg data get {name}"
    )


def damaged(name: str, path: Path, what: str) -> InputError:
    """The error for a file that is not what was published."""
    return InputError(f"data set {name!r}: {path} {what}; replace it, or run: fedacg data get {name}")


def check(name: str, path: Path, data: bytes, size: int | None, published: str | None) -> None:
    """Refuse contents of the wrong size, or with another md5 than the published one (where it is known)."""
    if size is not None and len(data) != size:
        kind = "is cut short" if len(data) < size else "is too long"
        raise damaged(name, path, f"{kind}: {len(data)} bytes where there should be {size}")
    if published is not None and (found := md5(data)) != published:
        raise damaged(name, path, f"was altered: its md5 is {found}, the published one {published}")
