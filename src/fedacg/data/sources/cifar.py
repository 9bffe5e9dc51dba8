"""CIFAR-10 and CIFAR-100 in their distributor's layouts: binary or Python, unpacked or as an archive.

Archives are read as they are, never unpacked to disk. Checksums are compared if the published one is known.
Pickles are read without running any code they may contain.
"""

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedacg.data.examples import Contents, TensorExamples
from fedacg.data.files import (
    Listing,
    altered,
    checksum,
    damaged,
    file_checksum,
    is_dir,
    is_file,
    read_bytes,
    wrong_size,
)
from fedacg.data.origins import PUBLISHED, Published, published_md5
from fedacg.data.sources import Source, cifar


class Refused(Exception):
    """The pickle is not one of CIFAR's."""


def _byte_dtype(code: object, *_: object) -> np.dtype[np.uint8]:
    if code != "u1":
        raise Refused(f"has an array of {code!r}, not of bytes")
    return np.dtype(np.uint8)


_reconstruct: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]  # numpy moved it
_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _byte_dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Callable[..., Any]:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise Refused(f"asks for {module}.{name}, which does not belong in it") from None


def loads(data: bytes) -> dict[str, Any]:
    """The dictionary in a pickle that Python 2 wrote."""
    try:
        loaded = _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except Refused:
        raise
    except Exception as error:  # damaged bytes make the unpickler raise nearly anything
        raise Refused(f"cannot be read as a pickle ({type(error).__name__}: {error})") from None
    if not isinstance(loaded, dict):
        raise Refused("is not a dictionary")
    return loaded


PIXELS = 3 * 32 * 32
Records = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images, one per row, and their labels."""


@dataclass(frozen=True)
class Binary:
    """Records of some label bytes, of which the last counts, and the pixels."""

    label_bytes: int

    def fault(self, size: int, records: int, *, partial: bool) -> str | None:
        """What is wrong with the size of a file of this many records, or of any number of complete ones."""
        expected = records * (self.label_bytes + PIXELS)
        right = size % (self.label_bytes + PIXELS) == 0 if partial else size == expected
        return None if right else wrong_size(size, expected)

    def decode(self, data: bytes) -> Records:
        rows = np.frombuffer(data, np.uint8).reshape(-1, self.label_bytes + PIXELS)
        return rows[:, self.label_bytes :], rows[:, self.label_bytes - 1].astype(np.int64)


@dataclass(frozen=True)
class Pickled:
    """A dictionary with the images under "data" and the labels under a key."""

    label_key: str

    def fault(self, size: int, records: int, *, partial: bool) -> str | None:
        return None

    def decode(self, data: bytes) -> Records:
        batch = cifar.loads(data)
        x, y = batch.get("data"), batch.get(self.label_key)
        if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != PIXELS:
            raise cifar.Refused(f'has no images of {PIXELS} bytes under "data"')
        if not isinstance(y, list) or len(y) != len(x) or not all(type(label) is int for label in y):
            raise cifar.Refused(f'has not one whole number per image under "{self.label_key}"')
        return x, np.array(y, dtype=np.int64)


@dataclass(frozen=True)
class Batch:
    """One published file, with its number of records and its checksum (None: not known)."""

    file: str
    records: int
    checksum: str | None = None


@dataclass(frozen=True)
class Layout:
    """One of the forms in which a data set is distributed."""

    folder: str
    archive: str
    archive_md5: str
    train: tuple[Batch, ...]
    test: tuple[Batch, ...]
    format: Binary | Pickled

    @property
    def batches(self) -> tuple[Batch, ...]:
        return self.train + self.test


@dataclass(frozen=True)
class CifarSource(Source):
    """Where a CIFAR data set may be, and what must be in it."""

    name: str
    classes: int
    published: Published
    layouts: tuple[Layout, ...]
    wanted: str = "the folder or the archive as it is distributed"

    def places(self, root: Path) -> list[Path]:
        return [root / place for layout in self.layouts for place in (layout.folder, layout.archive)]

    def copies(self, root: Path) -> list[Path]:
        """The whole folders, then the archives, then the folders with some of the files."""
        held = {root / layout.folder: self._held(root / layout.folder) for layout in self.layouts}
        whole = [folder for folder, batches in held.items() if len(batches) == len(self._layout(folder).batches)]
        archives = [at for layout in self.layouts if is_file(self.name, at := root / layout.archive)]
        some = [folder for folder, batches in held.items() if batches and folder not in whole]
        return whole + archives + some

    def listing(self, copy: Path) -> Listing:
        if is_file(self.name, copy):
            return Listing(self.name, copy, copy.parent, (copy.name,))
        return Listing(self.name, copy, copy, tuple(batch.file for batch in self._held(copy)))

    def read_copy(self, listing: Listing, *, partial: bool, fresh: bool) -> Contents:
        """The training and the test examples: images (N, 3, 32, 32) in bytes, fine labels."""
        copy = listing.copy
        layout, unpacked = self._layout(copy), is_dir(self.name, copy)
        files = self._unpacked(copy, layout) if unpacked else self._packed(copy, layout)
        differences: list[str] = []
        if not unpacked and any(batch.checksum is None for batch in layout.batches):
            found = file_checksum(self.name, copy, layout.archive_md5)
            if found != layout.archive_md5:
                differences.append(altered(found, layout.archive_md5))
        decoded: dict[Batch, Records] = {}
        for batch, data in files:
            decoded[batch] = self._decode(copy, layout, batch, data, partial=partial)
            if batch.checksum and (found := checksum(data, batch.checksum)) != batch.checksum:
                differences.append(f"has {batch.file}, which {altered(found, batch.checksum)}")
        lacking = [batch.file for batch in layout.batches if batch not in decoded]
        differences += [f"lacks {file}" for file in lacking]
        for what, batches in (("training", layout.train), ("test", layout.test)):
            if not any(batch in decoded for batch in batches):
                raise damaged(self.name, copy, f"has none of the {what} examples")
        if differences and not partial:
            raise damaged(self.name, copy, differences[0])
        parts = (_together(decoded, batches) for batches in (layout.train, layout.test))
        return Contents(next(parts), next(parts), differences=tuple(differences))

    def _layout(self, copy: Path) -> Layout:
        return next(layout for layout in self.layouts if copy.name in (layout.folder, layout.archive))

    def _held(self, folder: Path) -> list[Batch]:
        batches = self._layout(folder).batches
        return [batch for batch in batches if is_file(self.name, folder / batch.file)]

    def _unpacked(self, folder: Path, layout: Layout) -> Iterator[tuple[Batch, bytes]]:
        for batch in self._held(folder):
            yield batch, read_bytes(self.name, folder / batch.file)

    def _packed(self, archive: Path, layout: Layout) -> Iterator[tuple[Batch, bytes]]:
        wanted = {f"{layout.folder}/{batch.file}": batch for batch in layout.batches}
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:
                    batch = wanted.pop(member.name.removeprefix("./"), None) if member.isfile() else None
                    if batch is not None and (file := tar.extractfile(member)) is not None:
                        yield batch, file.read()
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise damaged(self.name, archive, f"cannot be unpacked ({error})") from None

    def _decode(self, copy: Path, layout: Layout, batch: Batch, data: bytes, *, partial: bool) -> Records:
        path = copy / batch.file
        if fault := layout.format.fault(len(data), batch.records, partial=partial):
            raise damaged(self.name, path, fault)
        try:
            x, y = layout.format.decode(data)
        except cifar.Refused as refusal:
            raise damaged(self.name, path, str(refusal)) from None
        if len(x) != batch.records and not partial:
            raise damaged(self.name, path, f"has {len(x)} images where there should be {batch.records}")
        if not len(x):
            raise damaged(self.name, path, "is empty")
        if not 0 <= y.min() <= y.max() < self.classes:
            raise damaged(
                self.name, path, f"has labels from {y.min()} to {y.max()}, beyond 0 to {self.classes - 1}"
            )
        return x, y


def _together(decoded: dict[Batch, Records], batches: tuple[Batch, ...]) -> TensorExamples:
    there = [decoded[batch] for batch in batches if batch in decoded]
    x = np.concatenate([pixels for pixels, _ in there]).reshape(-1, 3, 32, 32)
    y = np.concatenate([labels for _, labels in there])
    return TensorExamples(torch.from_numpy(x), torch.from_numpy(y))


CIFAR10 = CifarSource(
    name="cifar10",
    classes=10,
    published=PUBLISHED["cifar10"],
    layouts=(
        Layout(
            folder="cifar-10-batches-bin",
            archive="cifar-10-binary.tar.gz",
            archive_md5=published_md5("cifar-10-binary.tar.gz"),
            train=(
                Batch("data_batch_1.bin", 10_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
                Batch("data_batch_2.bin", 10_000, "5ea93a67294ea407fff1d09f752e9692"),
                Batch("data_batch_3.bin", 10_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
                Batch("data_batch_4.bin", 10_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
                Batch("data_batch_5.bin", 10_000, "53f37980c15c3d472c316c40844f3f0d"),
            ),
            test=(Batch("test_batch.bin", 10_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),),
            format=Binary(label_bytes=1),
        ),
        Layout(
            folder="cifar-10-batches-py",
            archive="cifar-10-python.tar.gz",
            archive_md5="c58f30108f718f92721af3b95e74349a",
            train=(
                Batch("data_batch_1", 10_000, "c99cafc152244af753f735de768cd75f"),
                Batch("data_batch_2", 10_000, "d4bba439e000b95fd0a9bffe97cbabec"),
                Batch("data_batch_3", 10_000, "54ebc095f3ab1f0389bbae665268c751"),
                Batch("data_batch_4", 10_000, "634d18415352ddfa80567beed471001a"),
                Batch("data_batch_5", 10_000, "482c414d41f54cd18b22e5b47cb7c3cb"),
            ),
            test=(Batch("test_batch", 10_000, "40351d587109b95175f43aff81a1287e"),),
            format=Pickled(label_key="labels"),
        ),
    ),
)
CIFAR100 = CifarSource(
    name="cifar100",
    classes=100,
    published=PUBLISHED["cifar100"],
    layouts=(
        Layout(
            folder="cifar-100-binary",
            archive="cifar-100-binary.tar.gz",
            archive_md5=published_md5("cifar-100-binary.tar.gz"),
            train=(
                Batch("train.bin", 50_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
            ),
            test=(Batch("test.bin", 10_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),),
            format=Binary(label_bytes=2),
        ),
        Layout(
            folder="cifar-100-python",
            archive="cifar-100-python.tar.gz",
            archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
            train=(Batch("train", 50_000, "16019d7e3df5f24257cddd939b257f8d"),),
            test=(Batch("test", 10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
            format=Pickled(label_key="fine_labels"),
        ),
    ),
)
