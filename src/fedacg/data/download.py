"""Download of data sets from their authors' sites, checked against the published checksums.

A file appears under its name only when it is complete and correct. Other modules read the files.
"""

import hashlib
import http.client
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from fedacg import errors
from fedacg.data import catalogue
from fedacg.data.catalogue import NAMES
from fedacg.data.examples import Origin
from fedacg.data.files import data_root
from fedacg.data.origins import BY_HAND, REMOTES, Remote
from fedacg.errors import InputError

TIMEOUT = 60.0
_BLOCK = 1 << 18


def there(name: str) -> Origin | None:
    """The copy of a data set in one of the searched places, read now if it was not before."""
    if name not in catalogue.FACTS:
        return None
    survey = catalogue.survey(name)
    if survey.problem or not isinstance(survey.place, Path):
        return None
    return survey.origin or catalogue.check(name)


def get(name: str, console: Console | None = None) -> list[Path]:
    """Download the files of a data set and return them; none for one that is built in."""
    if name not in NAMES:
        raise errors.unknown("data set", name, NAMES)
    if name in BY_HAND:
        raise InputError(
            f"{name} has no direct download. By hand: {BY_HAND[name]}\n"
            f"below the data root, which is {data_root()} (FEDACG_DATA sets the folder)"
        )
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as progress:
        return [fetch(remote, data_root(), progress) for remote in REMOTES.get(name, ())]


def fetch(remote: Remote, root: Path, progress: Progress) -> Path:
    """Download one file, unless it is there already with the right checksum."""
    path = root / remote.place
    task = progress.add_task(path.name, total=None)
    made: list[Path] = []
    try:
        if path.is_file() and _md5_of(path) == remote.md5:
            progress.update(task, total=1, completed=1)
            return path
        made += [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            partial = Path(file.name)
    except OSError as error:
        _remove_empty(made)
        raise InputError(
            f"cannot read and write {path.parent}: {error.strerror} (FEDACG_DATA sets the folder)"
        ) from None
    try:
        found = _stream(remote.url, partial, progress, task)
        if found != remote.md5:
            raise _by_hand(remote, path, f"the download has the md5 {found}")
        partial.chmod(0o644)
        partial.replace(path)
    except urllib.error.HTTPError as answer:
        with answer:
            raise _by_hand(remote, path, f"the server answers {answer.code} {answer.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _by_hand(remote, path, str(reason) or type(error).__name__) from None
    finally:
        partial.unlink(missing_ok=True)
        if not path.exists():
            _remove_empty(made)
    return path


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders that were made in vain, the innermost first, if they are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _stream(url: str, path: Path, progress: Progress, task: TaskID) -> str:
    """Write the response to a file as it arrives; return its md5."""
    digest = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, path.open("wb") as file:
        length = answer.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        progress.update(task, total=total)
        received = 0
        while block := answer.read(_BLOCK):
            file.write(block)
            digest.update(block)
            received += len(block)
            progress.update(task, completed=received)
    if total is not None and received < total:
        raise ConnectionError(f"the connection ended after {received} of {total} bytes")
    return digest.hexdigest()


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _by_hand(remote: Remote, path: Path, reason: str) -> InputError:
    return InputError(
        f"could not download {remote.url}: {reason}\n"
        f"By hand: get this file (md5 {remote.md5}) with any tool and put it at\n  {path}"
    )
