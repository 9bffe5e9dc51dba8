"""JPEG files by the ten thousand, in a folder or in a zip file, decoded into one array.

Which files there are, and what they show, the readers of the data sets know. Archives are read as they are,
never unpacked to disk.
"""

import io
import os
import threading
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedacg.data.files import damaged

_LARGEST = 1 << 26
"""Bytes of a file, and pixels of an image, beyond which it cannot be part of a data set."""
_ENDINGS = (".jpg", ".jpeg")
_STEP = 100
"""Images that a thread decodes in one go."""
_THREADS = min(4, os.cpu_count() or 1)
"""Pillow lets go of the interpreter while it decodes. Two threads are half as fast again as one with CelebA's
images, and no faster with Tiny-ImageNet's, where most of the time goes into Python's own work."""


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
        return sorted(entry.name for entry in self._entries(folder) if entry.is_dir())

    def images(self, folder: str) -> list[str]:
        return sorted(entry.name for entry in self._entries(folder) if _is_image(entry.name))

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def read(self, name: str) -> bytes:
        path = self.path(name)
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            raise damaged(self.dataset, path, "is missing") from None
        except OSError as error:
            raise damaged(self.dataset, path, f"cannot be read ({error.strerror})") from None
        return _limited(self.dataset, path, data)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        path = self.path(folder)
        try:
            with os.scandir(path) as entries:
                return [entry for entry in entries if not entry.name.startswith(".")]
        except FileNotFoundError:
            raise damaged(self.dataset, path, "is missing") from None
        except OSError as error:
            raise damaged(self.dataset, path, f"cannot be read as a folder ({error.strerror})") from None


class ZipFiles:
    """Files in a zip file, which stays open."""

    def __init__(self, dataset: str, archive: Path, opened: zipfile.ZipFile) -> None:
        self.dataset, self._archive, self._opened = dataset, archive, opened
        self._lock = threading.Lock()
        self._members = frozenset(opened.namelist())
        self._names: dict[str, list[str]] = {}
        for entry in self._members:
            folder, _, name = entry.rpartition("/")
            names = self._names.setdefault(folder, [])
            if _is_image(name):
                names.append(name)

    def path(self, name: str) -> Path:
        return self._archive / name

    def folders(self, folder: str) -> list[str]:
        below = (at.removeprefix(f"{folder}/") for at in self._names if at.startswith(f"{folder}/"))
        names = {at.split("/")[0] for at in below}
        if not names and folder not in self._names:
            raise damaged(self.dataset, self._archive, f"lacks {folder}/")
        return sorted(name for name in names if not name.startswith("."))

    def images(self, folder: str) -> list[str]:
        if folder not in self._names:
            raise damaged(self.dataset, self._archive, f"lacks {folder}/")
        return sorted(self._names[folder])

    def has(self, name: str) -> bool:
        return name in self._members

    def read(self, name: str) -> bytes:
        try:
            with self._lock, self._opened.open(name) as file:
                data = file.read(_LARGEST + 1)
        except KeyError:
            raise damaged(self.dataset, self._archive, f"lacks {name}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
            raise damaged(self.dataset, self.path(name), f"cannot be unpacked ({error})") from None
        return _limited(self.dataset, self.path(name), data)


@contextmanager
def opened(dataset: str, base: Path) -> Iterator[Files]:
    """The files below a folder or in a zip file."""
    if base.is_dir():
        yield FolderFiles(dataset, base)
        return
    try:
        archive = zipfile.ZipFile(base)
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError) as error:
        raise damaged(dataset, base, f"cannot be read as a zip file ({error})") from None
    with archive:
        yield ZipFiles(dataset, base, archive)


def lines(files: Files, name: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of a text file that are not empty: their numbers, from 1, and their words."""
    try:
        text = files.read(name).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise damaged(files.dataset, files.path(name), "is not a text file") from None
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.split():
            yield number, words


def decode_all(
    files: Files, names: Sequence[str], into: NDArray[np.uint8], advance: Callable[[int], None], *, resize: bool
) -> None:
    """Decode files into an array (N, 3, side, side); images of another size are resized, or refused."""

    def decode_some(first: int) -> int:
        for position, name in enumerate(names[first : first + _STEP], first):
            try:
                into[position] = decode(files.read(name), into.shape[-1], resize=resize)
            except Undecodable as what:
                raise damaged(files.dataset, files.path(name), str(what)) from None
        return len(names[first : first + _STEP])

    pool = ThreadPoolExecutor(_THREADS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, about notes in a file that are not part of the picture
            for count in pool.map(decode_some, range(0, len(names), _STEP)):
                advance(count)
    finally:
        pool.shutdown(cancel_futures=True)


class Undecodable(Exception):
    """What is wrong with an image."""


def decode(data: bytes, side: int, *, resize: bool) -> NDArray[np.uint8]:
    """The pixels (3, side, side) of a JPEG file; a grey image has three equal channels."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            width, height = image.size
            if not resize and (width, height) != (side, side):
                raise Undecodable(f"is {width}×{height} pixels, not {side}×{side}")
            if width * height > _LARGEST:
                raise Undecodable(f"is {width}×{height} pixels, too large to be part of the data set")
            # Resized before it is converted, as LEAF does.
            shaped = image.resize((side, side), Image.Resampling.BICUBIC) if resize else image
            return np.asarray(shaped.convert("RGB")).transpose(2, 0, 1)
    except Image.DecompressionBombError:
        raise Undecodable("is an image too large to be part of the data set") from None
    except (OSError, SyntaxError, ValueError) as error:
        reason = "not a JPEG file" if isinstance(error, UnidentifiedImageError) else error
        raise Undecodable(f"cannot be decoded ({reason})") from None


@contextmanager
def progress(dataset: str, images: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere; gives what moves it on by a number of images."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(f"preparing {dataset}, once", total=images)
        yield lambda count: bar.advance(task, count)


def _is_image(name: str) -> bool:
    return name.lower().endswith(_ENDINGS) and not name.startswith(".")


def _limited(dataset: str, path: Path, data: bytes) -> bytes:
    if len(data) > _LARGEST:
        raise damaged(dataset, path, f"is larger than {_LARGEST >> 20} MiB")
    return data
