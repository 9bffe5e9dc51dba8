"""Data sets that are slow to read, prepared once: arrays in files that are memory-mapped from then on.

A prepared data set is a folder of .npy files that appears under its name only when it is whole. The name carries a
fingerprint of the files it was made from, so that other files make another one. It can be deleted at any time.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacg.data.files import data_root
from fedacg.errors import InputError

_SIZES = "sizes.json"


def prepare(name: str, version: int, sources: Iterable[Path], make: Callable[[Path], None]) -> Path:
    """The folder of arrays that `make(folder)` fills, made anew only when `sources` or `version` changed.

    `sources` are files, or folders whose list of entries counts; `version` is raised when `make` changes. The
    folder lies in the data root, or in the user's cache where the data root cannot be written.
    """
    label = f"{name}-{_fingerprint(version, sources)}"
    homes = (data_root() / "prepared", Path("~/.cache/fedacg/prepared").expanduser())
    for home in homes:
        if _is_whole(home / label):
            return home / label
    folder = _writable(homes) / label
    with _alone(folder.parent / f".{name}.lock") as alone:
        if alone:
            _sweep(folder)
        if not _is_whole(folder):
            _make(folder, make)
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    try:
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", ignore_cleanup_errors=True) as draft:
            partial = Path(draft) / folder.name
            partial.mkdir()
            make(partial)
            sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
            (partial / _SIZES).write_text(json.dumps(sizes))
            for file in partial.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            if not _is_whole(folder):  # else another process was faster, and what it made is as good
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error}") from None


@contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    """Wait for others that hold the lock; False where there can be none, and others may be at it, too."""
    with ExitStack() as stack:
        try:
            fcntl.flock(stack.enter_context(lock.open("a")), fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone


def _sweep(folder: Path) -> None:
    """Remove what a process left that was killed while it made this folder."""
    for draft in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(draft, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / _SIZES).read_text())
        return all((folder / file).stat().st_size == size for file, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _writable(homes: Iterable[Path]) -> Path:
    """The first of these folders that can be made and written."""
    for home in homes:
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK):
            return home
    raise InputError(f"{home}: cannot be written, and neither can {data_root()} (FEDACG_DATA sets the folder)")


def _fingerprint(version: int, sources: Iterable[Path]) -> str:
    digest = hashlib.sha256(str(version).encode())
    for path in sources:
        try:
            facts = path.stat()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        digest.update(f"|{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class MappedArray:
    """A .npy file as a tensor; travels to other processes as its path, and costs none of them memory."""

    path: Path

    @cached_property
    def tensor(self) -> Tensor:
        # Copy on write: torch will not have memory that it may not write to.
        return torch.from_numpy(np.load(self.path, mmap_mode="c"))

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
    """A new array that lies in the file `<name>.npy` of a folder, to be filled without holding it in memory."""
    path = folder / f"{name}.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if sys.platform == "linux":
        # A full disk is met here as an error; met while the array is filled, it would end the process.
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array
