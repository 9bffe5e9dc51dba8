"""CIFAR-10 and CIFAR-100 in their distributor's layouts: binary or Python, unpacked or as an archive.

Archives are read as they are, never unpacked to disk. Checksums are compared wherever the published
one is known; what an unpickler may do is settled in pickles.py.
"""

import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedacg.data.examples import Contents, TensorExamples
from fedacg.data.files import check, damaged, missing
from fedacg.data.sources import pickles

PIXELS = 3 * 32 * 32
Records = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images, one a row, and their labels."""


@dataclass(frozen=True)
class Binary:
    """Records of some label bytes, of which the last counts, and the pixels."""

    label_bytes: int

    def size(self, records: int) -> int | None:
        return records * (self.label_bytes + PIXELS)

    def decode(self, data: bytes) -> Records:
        rows = np.frombuffer(data, np.uint8).reshape(-1, self.label_bytes + PIXELS)
        return rows[:, self.label_bytes :], rows[:, self.label_bytes - 1].astype(np.int64)


@dataclass(frozen=True)
class Pickled:
    """A dictionary with the images under "data" and the labels under a key."""

    label_key: str

    def size(self, records: int) -> int | None:
        return None

    def decode(self, data: bytes) -> Records:
        batch = pickles.loads(data)
        x, y = batch.get("data"), batch.get(self.label_key)
        if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != PIXELS:
            raise pickles.Refused(f'has no images of {PIXELS} bytes under "data"')
        if not isinstance(y, list) or len(y) != len(x) or not all(type(label) is int for label in y):
            raise pickles.Refused(f'has not one whole number per image under "{self.label_key}"')
        return x, np.array(y, dtype=np.int64)


@dataclass(frozen=True)
class Batch:
    """One published file, with its number of records and the md5 that is published (None: not known)."""

    file: str
    records: int
    md5: str | None = None


@dataclass(frozen=True)
class Layout:
    """One of the forms in which a data set is distributed."""

    folder: str
    archive: str
    archive_md5: str
    train: tuple[Batch, ...]
    test: tuple[Batch, ...]
    format: Binary | Pickled


@dataclass(frozen=True)
class CifarSource:
    """Where a CIFAR data set may lie, and what must be in it."""

    name: str
    classes: int
    layouts: tuple[Layout, ...]

    def find(self, root: Path) -> Path | None:
        """The first whole folder or archive; else the first folder that is there at all."""
        folders = [(layout, root / layout.folder) for layout in self.layouts]
        whole = [at for layout, at in folders if all((at / b.file).is_file() for b in layout.train + layout.test)]
        archives = [at for layout in self.layouts if (at := root / layout.archive).is_file()]
        partial = [at for _, at in folders if at.is_dir()]
        return next(iter(whole + archives + partial), None)

    def read(self, root: Path) -> Contents:
        """The training and the test examples: images (N, 3, 32, 32) in bytes, fine labels."""
        where = self.find(root)
        if where is None:
            places = [root / place for layout in self.layouts for place in (layout.folder, layout.archive)]
            raise missing(self.name, places, "the folder or the archive as it is distributed")
        layout = next(layout for layout in self.layouts if where.name in (layout.folder, layout.archive))
        files = self._unpacked(where, layout) if where.is_dir() else self._packed(where, layout)
        decoded = {file: self._decode(where, layout, file, data) for file, data in files}
        return Contents(_together(decoded, layout.train), _together(decoded, layout.test))

    def _unpacked(self, folder: Path, layout: Layout) -> Iterator[tuple[Batch, bytes]]:
        for batch in layout.train + layout.test:
            path = folder / batch.file
            if not path.is_file():
                raise damaged(self.name, path, "is missing")
            yield batch, path.read_bytes()

    def _packed(self, archive: Path, layout: Layout) -> Iterator[tuple[Batch, bytes]]:
        batches = layout.train + layout.test
        if any(batch.md5 is None for batch in batches):
            check(self.name, archive, archive.read_bytes(), None, layout.archive_md5)
        wanted = {f"{layout.folder}/{batch.file}": batch for batch in batches}
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:
                    batch = wanted.pop(member.name.removeprefix("./"), None) if member.isfile() else None
                    if batch is not None and (file := tar.extractfile(member)) is not None:
                        yield batch, file.read()
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise damaged(self.name, archive, f"cannot be unpacked ({error})") from None
        if wanted:
            raise damaged(self.name, archive, f"lacks {', '.join(sorted(wanted))}")

    def _decode(self, where: Path, layout: Layout, batch: Batch, data: bytes) -> Records:
        path = where / batch.file
        check(self.name, path, data, layout.format.size(batch.records), batch.md5)
        try:
            x, y = layout.format.decode(data)
        except pickles.Refused as refusal:
            raise damaged(self.name, path, str(refusal)) from None
        if len(x) != batch.records:
            raise damaged(self.name, path, f"has {len(x)} images where there should be {batch.records}")
        if not 0 <= y.min() <= y.max() < self.classes:
            raise damaged(
                self.name, path, f"has labels from {y.min()} to {y.max()}, beyond 0 to {self.classes - 1}"
            )
        return x, y


def _together(decoded: dict[Batch, Records], batches: tuple[Batch, ...]) -> TensorExamples:
    x = np.concatenate([decoded[batch][0] for batch in batches]).reshape(-1, 3, 32, 32)
    y = np.concatenate([decoded[batch][1] for batch in batches])
    return TensorExamples(torch.from_numpy(x), torch.from_numpy(y))


CIFAR10 = CifarSource(
    name="cifar10",
    classes=10,
    layouts=(
        Layout(
            folder="cifar-10-batches-bin",
            archive="cifar-10-binary.tar.gz",
            archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
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
    layouts=(
        Layout(
            folder="cifar-100-binary",
            archive="cifar-100-binary.tar.gz",
            archive_md5="03b5dce01913d631647c71ecec9e9cb8",
            train=(Batch("train.bin", 50_000),),  # only the archive's md5 is published
            test=(Batch("test.bin", 10_000),),
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
