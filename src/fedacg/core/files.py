"""Files on disk: written whole or not at all, read only if they are files, never through a link when changed.

Everything that is kept goes through here. What is written reaches the disk together with the folder that names it.
Errors are OSErrors; whoever calls knows what they mean.
"""

import errno
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fedacg.errors import InputError


class NotJson(InputError):
    """Text that is not JSON, for example because it was cut off."""


_SEAL = re.compile(rb',\s*"check": "([0-9a-f]{8})"\s*\}\s*')


def seal(text: str) -> str:
    """A JSON object as text, with its checksum as the last entry."""
    body = text.rstrip()[:-1].rstrip()
    check = f'"check": "{zlib.crc32(body.encode()):08x}"'
    return f"{body},\n  {check}\n}}\n" if "\n" in body else f"{body}, {check}}}"


def unseal(content: bytes, *, sealed: bool = True) -> dict[str, Any]:
    """The object in a text that `seal` wrote, without its checksum; raises InputError if they do not match.

    Without `sealed`, text written before there were checksums is accepted as well.
    """
    end = content.rfind(b",")
    match = _SEAL.fullmatch(content, end) if end >= 0 else None
    if match and int(match[1], 16) != zlib.crc32(content[:end]):
        raise InputError("damaged: its checksum does not match")
    try:
        record = json.loads(content.decode())
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg}") from error
    except UnicodeDecodeError:
        raise NotJson("not JSON: not text") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise InputError(f"cannot be read: {error}") from None
    if not isinstance(record, dict):
        raise InputError("not a JSON object")
    if match is None and sealed:
        raise InputError("damaged: has no checksum")
    record.pop("check", None)
    return record


MOST_TEXT = 1 << 28
"""Largest text file that is read at once, in bytes; a description or a run's metrics are far smaller."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; a link of its name is replaced and its target left alone."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        write_new(draft, content)
        sync(draft)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            remove(draft)
        raise
    sync(path.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write a new file without waiting for the disk."""
    remove(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(content)


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read. Pipes and devices, which could block for ever, are refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")


def read_whole(path: Path, most: int | None = None) -> bytes:
    """A file's bytes, at most `most`."""
    with open_regular(path) as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most // 2**20} MiB")
        return file.read()


def read_text(path: Path) -> str:
    """A text file; bytes that are not UTF-8 raise UnicodeDecodeError."""
    return read_whole(path, MOST_TEXT).decode()


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot do this for folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


_MANY = 64
"""Files that are waited for one by one, at most."""


def sync_all(paths: Sequence[Path]) -> None:
    """Wait until files and folders of one file system are on the disk.

    Where there are many and the system can, the whole file system is waited for instead: a disk that takes a
    millisecond for each file takes not much more for all of them.
    """
    if len(paths) > _MANY and _sync_file_system(paths[0]):
        return
    for path in paths:
        sync(path)


def _sync_file_system(path: Path) -> bool:
    """Wait for everything on the file system of a path; False if that is not possible here or went wrong."""
    import ctypes  # only where there is much to keep

    function = getattr(ctypes.CDLL(None), "syncfs", None)  # Linux has it
    if function is None:
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return bool(function(descriptor) == 0)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a link, if there is one; never a link's target, and never a folder."""
    path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, each synced to its parent folder."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder if it is empty; a link in its place stays."""
    with suppress(OSError):
        folder.rmdir()


def is_link(path: Path) -> bool:
    """Whether a path is a link."""
    try:
        return stat.S_ISLNK(path.lstat().st_mode)
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether there is a readable folder."""
    try:
        return path.is_dir()
    except OSError:  # a folder above it may not be read
        return False


def is_file(path: Path) -> bool:
    """Whether there is a readable file."""
    try:
        return path.is_file()
    except OSError:
        return False


def remove_drafts(folder: Path, names: Iterable[str], *, of_living: bool = False) -> None:
    """Remove drafts of these files that killed processes left; with `of_living`, all drafts.

    The latter is for folders that only one process writes.
    """
    pattern = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.([0-9]{{1,10}})\.draft")
    with os.scandir(folder) as entries:
        found = [(Path(entry.path), pattern.fullmatch(entry.name)) for entry in entries]
    for path, match in found:
        if match and (of_living or not is_alive(int(match[2]))):
            remove(path)


def is_alive(process: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def parse_folder(text: Path | str) -> Path:
    """A folder that a user names; an empty name, which would mean the current folder, is refused."""
    if not str(text) or "\0" in str(text):
        raise InputError(f"out = {str(text)!r}: must be the name of a folder")
    return Path(text)


def safe_name(name: str) -> str:
    """The name of a run's folder; one that would lead out of its parent folder is refused."""
    if "/" in name or os.sep in name or name in (".", "..") or not name.isprintable() or len(name.encode()) > 200:
        raise InputError(
            f"name = {name!r}: it names the run's folder, so it must have no / or control characters "
            "and at most 200 bytes; or choose the folder with --out"
        )
    return name
