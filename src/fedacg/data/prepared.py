"""Data sets that are slow to read, prepared once: arrays in files that are memory-mapped from then on.

A prepared data set is a folder of .npy files that appears under its name only when it is complete. The name has a
digest of the contents it was made from, so that other contents make another one, and the same contents are
recognised anywhere. It can be deleted at any time; `outdated` finds those that are no longer needed.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacg.data.files import Listing, data_root, homes, writable_home
from fedacg.errors import InputError

if TYPE_CHECKING:
    from fedacg.data.sources import Source

MANIFEST = "manifest.json"
_STAMPS = 8
"""Stamps of the same contents that are remembered."""
_HEADER = 128
"""Leading bytes of an array's file that are checked, so that none is opened with a damaged header."""


@dataclass(frozen=True)
class Manifest:
    """What a prepared data set was made from, and the expected state of its files."""

    name: str
    version: int
    copy: str
    """The copy it was made from, or was last recognised in."""
    stamps: tuple[str, ...]
    """Of files with these contents, the latest last."""
    files: dict[str, tuple[int, str]]
    """Size, and digest of the first bytes."""

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """The manifest of a complete preparation; None for anything else."""
        try:
            tree = json.loads((folder / MANIFEST).read_text())
            files = {file: (int(size), str(head)) for file, (size, head) in tree["files"].items()}
            found = cls(tree["name"], tree["version"], tree["copy"], tuple(tree["stamps"]), files)
            return found if all(_facts(folder / file) == facts for file, facts in files.items()) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, folder: Path) -> None:
        """Write it atomically."""
        with NamedTemporaryFile("w", dir=folder, prefix=f".{MANIFEST}.", delete=False) as file:
            json.dump(asdict(self), file)
        Path(file.name).replace(folder / MANIFEST)


def prepare(version: int, listing: Listing, make: Callable[[Path], None], *, fresh: bool = False) -> Path:
    """The folder of arrays that `make(folder)` fills, made again only for other contents or another version.

    `version` is raised when `make` changes; `fresh` makes it again in any case. The folder is in the data root,
    or in the user's cache if the data root cannot be written.
    """
    found = None if fresh else find(version, listing)
    if found:
        return found
    stamp = listing.first_stamp
    label = _label(version, listing)
    if not fresh:
        for folder in (home / label for home in homes()):
            if manifest := Manifest.read(folder):
                _remember(folder, manifest, listing, stamp)
                return folder
    folder = writable_home() / label
    with lock(folder.parent, listing.dataset) as alone:
        if alone:
            _sweep(folder)
        if fresh or Manifest.read(folder) is None:
            _make(folder, version, listing, stamp, make, replace=fresh)
    return folder


def find(version: int, listing: Listing, *, by_contents: bool = False) -> Path | None:
    """What was prepared from these files before, or from others with the same contents; None if nothing was."""
    stamp = listing.first_stamp
    whole = {folder: found for folder in prepared_folders(listing.dataset) if (found := Manifest.read(folder))}
    for folder, manifest in whole.items():
        if manifest.version == version and stamp in manifest.stamps:
            return folder
    if by_contents and whole:
        label = _label(version, listing)
        return next((folder for folder in whole if folder.name == label), None)
    return None


def _label(version: int, listing: Listing) -> str:
    return f"{listing.dataset}-{listing.digest(version)[:16]}"


def prepared_folders(name: str) -> list[Path]:
    """Every folder that was prepared of a data set, outdated ones as well."""
    return [path for home in homes() for path in sorted(home.glob(f"{name}-*")) if path.is_dir()]


def _remember(folder: Path, manifest: Manifest, listing: Listing, stamp: str) -> None:
    """Note that files with this stamp have the contents that the folder was made of."""
    stamps = (*manifest.stamps, stamp)[-_STAMPS:]
    with suppress(OSError):  # not writable: then the contents are compared again next time
        Manifest(manifest.name, manifest.version, str(listing.copy), stamps, manifest.files).write(folder)


def _make(
    folder: Path, version: int, listing: Listing, stamp: str, make: Callable[[Path], None], *, replace: bool
) -> None:
    try:
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", ignore_cleanup_errors=True) as draft:
            partial = Path(draft) / folder.name
            partial.mkdir()
            make(partial)
            if listing.stamp() != stamp:
                raise InputError(
                    f"data set {listing.dataset!r}: {listing.copy} changed while it was read; try again"
                )
            files = {file.name: _facts(file) for file in sorted(partial.iterdir())}
            Manifest(listing.dataset, version, str(listing.copy), (stamp,), files).write(partial)
            for file in partial.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            if (
                replace or Manifest.read(folder) is None
            ):  # else another process was faster, and its result is the same
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error}") from None


def _facts(file: Path) -> tuple[int, str]:
    with file.open("rb") as opened:
        head = hashlib.sha256(opened.read(_HEADER)).hexdigest()[:16]
    return file.stat().st_size, head


@contextmanager
def lock(home: Path, name: str, *, wait: bool = True) -> Iterator[bool]:
    """Lock the preparation of a data set; False if locking is impossible, and others may be preparing it too."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context((home / f".{name}.lock").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            alone = True
        except OSError:
            alone = False
        yield alone


def _sweep(folder: Path) -> None:
    """Remove what a killed process left of this folder."""
    for draft in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(draft, ignore_errors=True)


@dataclass(frozen=True)
class MappedArray:
    """A .npy file as a tensor; it is passed to other processes as its path, and costs none of them memory."""

    path: Path

    @cached_property
    def tensor(self) -> Tensor:
        try:
            # Copy on write: torch refuses memory that may not be written.
            return torch.from_numpy(np.load(self.path, mmap_mode="c"))
        except (OSError, ValueError, EOFError) as error:
            raise InputError(
                f"{self.path}: cannot be read as an array ({error}); delete its folder, and it is prepared again"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}


@dataclass(frozen=True)
class StoredExamples:
    """Examples in two .npy files: `<part>-x.npy` and `<part>-y.npy` of a folder."""

    x: MappedArray
    y: MappedArray

    @classmethod
    def open(cls, folder: Path, part: str) -> "StoredExamples":
        return cls(MappedArray(folder / f"{part}-x.npy"), MappedArray(folder / f"{part}-y.npy"))

    def __len__(self) -> int:
        return len(self.y.tensor)

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.x.tensor[index], self.labels(index)

    def labels(self, index: Tensor) -> Tensor:
        return self.y.tensor[index].long()


def array_file(folder: Path, name: str, shape: tuple[int, ...], dtype: type = np.uint8) -> NDArray[Any]:
    """A new array in the file `<name>.npy` of a folder, to be filled without holding it in memory."""
    path = folder / f"{name}.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if sys.platform == "linux":
        # A full disk is an error here; while the array is filled, it would kill the process.
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


# Prepared data that are no longer needed: their source files are gone or have changed, or they are incomplete


@dataclass(frozen=True)
class Outdated:
    """A folder of prepared data that can be removed."""

    path: Path
    size: int
    """In bytes, as files on disk."""
    why: str


def outdated(sources: Iterable["Source"]) -> list[Outdated]:
    """Every preparation of these data sets that no copy of them needs."""
    found: list[Outdated] = []
    for source in sources:
        needed = {folder for copy in _copies(source) if (folder := _prepared(source, copy))}
        for folder in prepared_folders(source.name):
            if folder not in needed:
                found.append(Outdated(folder, _size(folder), _why(folder)))
        for home in homes():
            with lock(home, source.name, wait=False) as alone:
                if alone:  # else another process is working on it right now
                    drafts = sorted(home.glob(f".{source.name}-*"))
                    found += [Outdated(draft, _size(draft), "left by a load that was killed") for draft in drafts]
    return found


def remove_outdated(folders: Iterable[Outdated]) -> None:
    """Remove them."""
    for each in folders:
        try:
            shutil.rmtree(each.path)
        except OSError as error:
            raise InputError(f"{each.path}: cannot be removed: {error.strerror}") from None


def _copies(source: "Source") -> list[Path]:
    """The copies in the data root, and others that something was prepared from."""
    try:
        copies = source.copies(data_root())
    except InputError:
        copies = []
    manifests = (Manifest.read(folder) for folder in prepared_folders(source.name))
    return list(dict.fromkeys([*copies, *(Path(manifest.copy) for manifest in manifests if manifest)]))


def _prepared(source: "Source", copy: Path) -> Path | None:
    """What was prepared from a copy as it is now: from these files, or from others with the same contents."""
    try:
        listing = source.listing(copy)
        if source.version is None or not listing.names:
            return None
        return find(source.version, listing, by_contents=True)
    except InputError:
        return None


def _why(folder: Path) -> str:
    manifest = Manifest.read(folder)
    if manifest is None:
        return "incomplete, or from an earlier version"
    return f"made from {manifest.copy}, which is gone or has changed"


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
