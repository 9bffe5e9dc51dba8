"""Origins of the data sets: addresses and checksums, downloads, instructions for manual ones, published counts.

A downloaded file appears under its name only when it is complete and correct. Errors take their advice from here,
so that none suggests a download that does not exist.
"""

import hashlib
import http.client
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from fedacg import errors
from fedacg.config.catalogue import DATA_SETS
from fedacg.data.examples import Contents, Examples, labels
from fedacg.errors import InputError


@dataclass(frozen=True)
class Remote:
    """A file on the network, its checksum, and its place below the data root."""

    url: str
    md5: str
    place: str


def _below(site: str, folder: str, files: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(site + file, md5, folder + file) for file, md5 in files.items())


# CIFAR's binary layout: the same examples as the pickled one, and nothing executable.
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
REMOTES: dict[str, tuple[Remote, ...]] = {
    "cifar10": _below(_CIFAR, "", {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}),
    "cifar100": _below(_CIFAR, "", {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}),
    "tiny-imagenet": _below(
        "http://cs231n.stanford.edu/", "", {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}
    ),
    # MNIST's own site is gone; this is the mirror that torchvision uses.
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


def published_md5(file: str) -> str:
    """The checksum of a file that can be downloaded, by its name."""
    remotes = [remote for group in REMOTES.values() for remote in group]
    return next(remote.md5 for remote in remotes if remote.url.endswith(f"/{file}"))


def or_get(name: str) -> str:
    """How to get a data set, as the end of a sentence."""
    if name in REMOTES:
        return f", or run: fedacg data get {name}"
    return f". To get it: {BY_HAND[name]}" if name in BY_HAND else ""


@dataclass(frozen=True)
class Published:
    """The counts of the complete data set; None for unknown ones."""

    train: int | None = None
    test: int | None = None
    together: int | None = None
    """Training and test examples together, if the split between them is this project's own."""
    train_per_class: int | None = None
    test_per_class: int | None = None
    """Examples per class, if all classes have the same number."""
    clients: int | None = None
    least_clients: int | None = None
    """The least number of clients of a complete copy, if the authors' own numbers differ."""

    def differences(self, contents: Contents, classes: int) -> list[str]:
        """Differences of a copy's counts from the published ones, each a phrase without a subject."""
        train, test = len(contents.train), len(contents.test)
        clients = len(contents.owners.names) if contents.owners else 0
        expected = (
            ("training examples", train, self.train),
            ("test examples", test, self.test),
            ("examples", train + test, self.together),
            ("clients", clients, self.clients),
        )
        found = [
            f"has {has} {what} where there should be {should}"
            for what, has, should in expected
            if should is not None and has != should
        ]
        if self.least_clients is not None and clients < self.least_clients:
            found.append(f"has {clients} clients where there should be at least {self.least_clients}")
        for what, part, each in (
            ("training", contents.train, self.train_per_class),
            ("test", contents.test, self.test_per_class),
        ):
            found += [] if each is None else _uneven(what, part, each, classes)
        return found


def _uneven(what: str, part: Examples, each: int, classes: int) -> list[str]:
    sizes = torch.bincount(labels(part), minlength=classes)
    wrong = torch.nonzero(sizes != each).flatten().tolist()
    if not wrong:
        return []
    others = f" (and {len(wrong) - 1} other classes differ)" if len(wrong) > 1 else ""
    return [f"has {int(sizes[wrong[0]])} {what} examples of class {wrong[0]} where there should be {each}{others}"]


PUBLISHED: dict[str, Published] = {
    "mnist": Published(60_000, 10_000),
    "fashion-mnist": Published(60_000, 10_000),
    "cifar10": Published(50_000, 10_000, train_per_class=5000, test_per_class=1000),
    "cifar100": Published(50_000, 10_000, train_per_class=500, test_per_class=100),
    "tiny-imagenet": Published(100_000, 10_000, train_per_class=500, test_per_class=50),
    # LEAF's paper counts 3,550 writers; its script, run today, finds up to 3,597.
    "femnist": Published(least_clients=3_550),
    "celeba": Published(together=200_288, clients=9_343),
    # Roles as LEAF's script finds them; the cut is this project's own.
    "shakespeare": Published(3_794_066, 361_605, clients=1_130),
}


# Downloads


TIMEOUT = 60.0
_BLOCK = 1 << 18


def download(name: str, root: Path, console: Console | None = None) -> list[Path]:
    """Download the files of a data set to a data root and return them; none for one that is built in."""
    if name not in DATA_SETS:
        raise errors.unknown("data set", name, DATA_SETS)
    if name in BY_HAND:
        raise InputError(
            f"{name} has no direct download. By hand: {BY_HAND[name]}\n"
            f"below the data root, which is {root} (FEDACG_DATA sets the folder)"
        )
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as progress:
        return [fetch(remote, root, progress) for remote in REMOTES.get(name, ())]


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
