"""Data sets of JPEG files: found in a folder or a zip file, and decoded into one array.

Archives are read as they are, never unpacked to disk, and whatever folder their files lie in. The readers of the
data sets know the files and their labels. Pixels go straight from the processes that decode into the array's
file, so that memory does not grow with the data set.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from fedacg.data.files import damaged, entries, is_dir, is_file, unreadable
from fedacg.data.prepared import array_file
from fedacg.data.sources import decode
from fedacg.data.sources.decode import LARGEST, Fault
from fedacg.errors import RunError

# The files of a data set, in a folder or in a zip file, by their names


_ENDINGS = (".jpg", ".jpeg")


class Files(Protocol):
    """Files of a data set by their names, which have their folders in them: `val/images/val_0.JPEG`."""

    dataset: str

    def path(self, name: str) -> Path:
        """Where a file lies, as errors name it."""
        ...

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, in order."""
        ...

    def images(self, folder: str) -> list[str]:
        """The names of the JPEG files in a folder, in order."""
        ...

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...


class FolderFiles:
    """Files below a folder."""

    def __init__(self, dataset: str, base: Path) -> None:
        self.dataset, self._base = dataset, base

    def path(self, name: str) -> Path:
        return self._base / name

    def folders(self, folder: str) -> list[str]:
        return [entry.name for entry in entries(self.dataset, self.path(folder)) if entry.is_dir()]

    def images(self, folder: str) -> list[str]:
        return [entry.name for entry in entries(self.dataset, self.path(folder)) if is_image(entry.name)]

    def has_images(self) -> bool:
        """Whether there is an image in the folder itself; the first one is enough."""
        try:
            with os.scandir(self._base) as found:
                return any(is_image(entry.name) for entry in found)
        except OSError as error:
            raise unreadable(self.dataset, self._base, error) from None

    def has(self, name: str) -> bool:
        return is_file(self.dataset, self.path(name))

    def read(self, name: str) -> bytes:
        path = self.path(name)
        try:
            with path.open("rb") as file:
                data = file.read(LARGEST + 1)
        except FileNotFoundError:
            raise damaged(self.dataset, path, "is missing") from None
        except OSError as error:
            raise unreadable(self.dataset, path, error) from None
        return _limited(self.dataset, path, data)


class ZipFiles:
    """Files in a zip file, which stays open, below one of its folders."""

    def __init__(self, dataset: str, archive: Path, opened: zipfile.ZipFile, top: str) -> None:
        self.dataset, self._archive, self._opened, self._top = dataset, archive, opened, top
        self._lock = threading.Lock()
        self._members = frozenset(opened.namelist())
        self._names: dict[str, list[str]] = {}
        for entry in self._members:
            folder, _, name = entry.rpartition("/")
            names = self._names.setdefault(folder, [])
            if is_image(name):
                names.append(name)

    def path(self, name: str) -> Path:
        return self._archive / self._entry(name)

    def folders(self, folder: str) -> list[str]:
        above = self._entry(folder)
        below = (at.removeprefix(f"{above}/") for at in self._names if at.startswith(f"{above}/"))
        names = {at.split("/")[0] for at in below}
        if not names and above not in self._names:
            raise damaged(self.dataset, self._archive, f"lacks {above}/")
        return sorted(name for name in names if not name.startswith("."))

    def images(self, folder: str) -> list[str]:
        at = self._entry(folder)
        if at not in self._names:
            raise damaged(self.dataset, self._archive, f"lacks {at}/")
        return sorted(self._names[at])

    def has(self, name: str) -> bool:
        return self._entry(name) in self._members

    def read(self, name: str) -> bytes:
        entry = self._entry(name)
        try:
            with self._lock, self._opened.open(entry) as file:
                data = file.read(LARGEST + 1)
        except KeyError:
            raise damaged(self.dataset, self._archive, f"lacks {entry}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
            raise damaged(self.dataset, self.path(name), f"cannot be unpacked ({error})") from None
        return _limited(self.dataset, self.path(name), data)

    def _entry(self, name: str) -> str:
        return "/".join(part for part in (self._top, name) if part)


@contextmanager
def opened(dataset: str, base: Path, top: Callable[[list[str]], str]) -> Iterator[Files]:
    """The files below a folder or in a zip file, where `top` says which of its folders is meant."""
    if is_dir(dataset, base):
        yield FolderFiles(dataset, base)
        return
    try:
        archive = zipfile.ZipFile(base)
    except FileNotFoundError:
        raise damaged(dataset, base, "is missing") from None
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError) as error:
        raise damaged(dataset, base, f"cannot be read as a zip file ({error})") from None
    with archive:
        yield ZipFiles(dataset, base, archive, top([name for name in archive.namelist() if not _is_hidden(name)]))


def lines(files: Files, name: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of a text file that are not empty: their numbers, from 1, and their words."""
    try:
        text = files.read(name).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise damaged(files.dataset, files.path(name), "is not a text file") from None
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.split():
            yield number, words


def is_image(name: str) -> bool:
    return name.lower().endswith(_ENDINGS) and not name.startswith(".")


def _is_hidden(entry: str) -> bool:
    """Whether a name is hidden, as files that macOS adds to archives."""
    return any(part.startswith(".") or part == "__MACOSX" for part in entry.split("/"))


def _limited(dataset: str, path: Path, data: bytes) -> bytes:
    if len(data) > LARGEST:
        raise damaged(dataset, path, f"is larger than {LARGEST >> 20} MiB")
    return data


# Decoding by the ten thousand, by as many processes as there are cores


_STEP = 100
"""Images that a process decodes at a time."""
_FEW = 500
"""Up to this many images are decoded here: starting processes takes longer."""


def decode_all(
    files: Files,
    names: Sequence[str],
    folder: Path,
    array: str,
    side: int,
    advance: Callable[[int], None],
    *,
    resize: bool,
) -> None:
    """Decode files into an array (N, 3, side, side) in a folder; other sizes are resized, or refused."""
    offset = array_file(folder, array, (len(names), 3, side, side)).offset  # type: ignore[attr-defined]
    path = folder / f"{array}.npy"
    size = 3 * side * side
    starts = range(0, len(names), _STEP)
    few = len(names) <= _FEW
    count = 1 if few else min(_cores(), len(starts))
    workers: list[_Here | _Process] = []
    idle: queue.SimpleQueue[_Here | _Process] = queue.SimpleQueue()

    def decode_some(first: int) -> int:
        chosen = names[first : first + _STEP]
        images = [files.read(name) for name in chosen]
        worker = idle.get()
        try:
            fault = worker.decode(offset + first * size, images)
        finally:
            idle.put(worker)
        if fault is not None:
            raise damaged(files.dataset, files.path(chosen[fault[0]]), fault[1])
        return len(chosen)

    # Threads read files and wait for processes; each holds the files of one step and no more.
    pool = ThreadPoolExecutor(count)
    try:
        for _ in range(count):
            workers.append((_Here if few else _Process)(path, side, resize=resize))
            idle.put(workers[-1])
        for done in pool.map(decode_some, starts):
            advance(done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.stop()
        pool.shutdown()  # those that waited for a process have been answered or failed by now
        for worker in workers:
            worker.close()


class _Here:
    """Decodes in this process."""

    def __init__(self, path: Path, side: int, *, resize: bool) -> None:
        self._side, self._resize = side, resize
        self._file = os.open(path, os.O_WRONLY)

    def decode(self, at: int, images: list[bytes]) -> Fault | None:
        return decode.decode_into(self._file, at, images, self._side, resize=self._resize)

    def stop(self) -> None:
        """Nothing to do here."""

    def close(self) -> None:
        os.close(self._file)


class _Process:
    """Decodes in a process of its own."""

    def __init__(self, path: Path, side: int, *, resize: bool) -> None:
        # By its path and not by its name: importing the package would import torch.
        program = [sys.executable, "-P", str(Path(decode.__file__))]
        arguments = [str(path), str(side), "resize" if resize else "keep"]
        self._process = subprocess.Popen(program + arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def decode(self, at: int, images: list[bytes]) -> Fault | None:
        assert self._process.stdin
        assert self._process.stdout
        try:
            pickle.dump((at, images), self._process.stdin)
            self._process.stdin.flush()
            fault: Fault | None = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            code = self._process.wait()
            raise RunError(f"a process that decodes images ended with code {code}; is memory short?") from None
        return fault

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with suppress(OSError):  # what was still to be sent
                pipe.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
