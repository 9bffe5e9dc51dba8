"""Fetching data sets from where their makers put them, checked against the published checksums.

A file appears under its name only when it is whole and right. Reading the files lives elsewhere, and
so does knowing whether a data set is there already.
"""

import hashlib
import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from fedacg import errors
from fedacg.data.catalogue import NAMES
from fedacg.data.files import data_root
from fedacg.data.sources import cifar, tiny_imagenet
from fedacg.errors import InputError

TIMEOUT = 60.0
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A file on the network, its checksum, and its place below the data root."""

    url: str
    md5: str
    place: str


def _below(site: str, folder: str, files: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(site + file, md5, folder + file) for file, md5 in files.items())


def _archive(source: cifar.CifarSource) -> tuple[Remote, ...]:
    """The binary layout: it holds the same examples as the pickled one, and nothing that could run."""
    layout = source.layouts[0]
    return _below("https://www.cs.toronto.edu/~kriz/", "", {layout.archive: layout.archive_md5})


REMOTES: dict[str, tuple[Remote, ...]] = {
    "cifar10": _archive(cifar.CIFAR10),
    "cifar100": _archive(cifar.CIFAR100),
    "tiny-imagenet": _below(
        "http://cs231n.stanford.edu/",
        "",
        {tiny_imagenet.TINY_IMAGENET.archive: "90528d7ca1a48142e341f4ef8d21d0de"},
    ),
    # MNIST's own site answers no more; this is the mirror that torchvision uses.
    "mnist": _below(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": _below(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "fashion-mnist/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
}

BY_HAND: dict[str, str] = {
    "celeba": "from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html (its terms: research only) get "
    "img_align_celeba.zip, list_attr_celeba.txt and identity_CelebA.txt, and put them in celeba/ "
    "(the archive may be unpacked there)",
    "femnist": "clone https://github.com/TalwalkarLab/leaf, run ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample "
    "in its folder data/femnist, and put data/train and data/test from there in leaf/femnist/data/",
    "shakespeare": "from http://www.gutenberg.org/files/100/old/1994-01-100.zip get 100.txt, and put it "
    "in shakespeare/",
}
"""Data sets without a direct download: what to get, from where, and its place below the data root."""


def get(name: str, console: Console | None = None) -> list[Path]:
    """Download what a data set is made of and return the files; none for one that is built in."""
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
    """One file, unless it is already there with the right checksum."""
    path = root / remote.place
    task = progress.add_task(path.name, total=None)
    if path.is_file() and _md5_of(path) == remote.md5:
        progress.update(task, total=1, completed=1)
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            partial = Path(file.name)
    except OSError as error:
        raise InputError(
            f"cannot write to {path.parent}: {error.strerror} (FEDACG_DATA sets the folder)"
        ) from None
    try:
        found = _stream(remote.url, partial, progress, task)
        if found != remote.md5:
            raise _by_hand(remote, path, f"what came has the md5 {found}")
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
    return path


def _stream(url: str, path: Path, progress: Progress, task: TaskID) -> str:
    """Write the answer to a file as it comes; its md5."""
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
