"""MNIST and Fashion-MNIST in their own format: four idx files, plain or gzipped.

A folder is read only when it holds the published files; a gzipped file is judged by its contents,
since the same contents can be packed in more than one way (as in Debian's packages).
"""

import gzip
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedacg.data.examples import Contents, TensorExamples
from fedacg.data.files import Listing, altered, checksum, damaged, is_dir, is_file, read_bytes, wrong_size
from fedacg.data.origins import PUBLISHED, Published
from fedacg.data.sources import Source

_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class IdxSource(Source):
    """Where a data set in idx files may be, and what must be in it."""

    name: str
    folders: tuple[str, ...]
    """Below the data root, or absolute."""
    md5: Mapping[str, str]
    """Checksums of the unpacked files."""
    published: Published
    side: int = 28
    classes: int = 10
    wanted: str = f"{', '.join(_FILES)} (plain or .gz)"

    def places(self, root: Path) -> list[Path]:
        return [root / folder for folder in self.folders]

    def copies(self, root: Path) -> list[Path]:
        """The folders that have one of the files, those with all four first."""
        folders = [folder for folder in self.places(root) if is_dir(self.name, folder)]
        held = {folder: sum(self._packing(folder, file) is not None for file in _FILES) for folder in folders}
        return sorted((folder for folder in folders if held[folder]), key=lambda folder: -held[folder])

    def listing(self, copy: Path) -> Listing:
        paths = (self._packing(copy, file) for file in _FILES)
        return Listing(self.name, copy, copy, tuple(path.name for path in paths if path))

    def read_copy(self, listing: Listing, *, partial: bool, fresh: bool) -> Contents:
        """The training and the test examples: images (N, 1, 28, 28) in bytes."""
        copy = listing.copy
        differences: list[str] = []
        train, test = (
            self._examples(copy, images, labels, None if partial else count, differences)
            for images, labels, count in (
                (*_FILES[:2], self.published.train),
                (*_FILES[2:], self.published.test),
            )
        )
        if differences and not partial:
            raise damaged(self.name, copy, differences[0])
        return Contents(train, test, differences=tuple(differences))

    def _examples(
        self, folder: Path, images: str, labels: str, count: int | None, differences: list[str]
    ) -> TensorExamples:
        x = self._array(folder, images, (count, self.side, self.side), differences)
        y = self._array(folder, labels, (count,), differences)
        if len(x) != len(y):
            raise damaged(self.name, folder / labels, f"has {len(y)} labels for {len(x)} images")
        if y.max(initial=0) >= self.classes:
            raise damaged(self.name, folder / labels, f"has the label {y.max()}, beyond {self.classes - 1}")
        return TensorExamples(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y).long())

    def _array(
        self, folder: Path, file: str, shape: tuple[int | None, ...], differences: list[str]
    ) -> NDArray[np.uint8]:
        """The array in a file; its first dimension may be left open."""
        path = self._packing(folder, file)
        if path is None:
            raise damaged(self.name, folder / file, "is missing (and so is its .gz)")
        data = self._contents(path)
        header = 4 + 4 * len(shape)
        if len(data) < header:
            raise damaged(self.name, path, f"is cut short: {len(data)} bytes")
        if data[:4] != struct.pack(">HBB", 0, 0x08, len(shape)):
            raise damaged(self.name, path, f"does not begin as an idx file of bytes in {len(shape)} dimensions")
        found = struct.unpack_from(f">{len(shape)}I", data, 4)
        expected = tuple(has if should is None else should for has, should in zip(found, shape, strict=True))
        if found != expected or not found[0]:
            raise damaged(self.name, path, f"holds an array of shape {found} where there should be {expected}")
        size = header + int(np.prod(found, dtype=np.int64))
        if len(data) != size:
            raise damaged(self.name, path, wrong_size(len(data), size))
        published = self.md5.get(file)
        if published and (md5 := checksum(data, published)) != published:
            differences.append(f"{path.name} {altered(md5, published)}")
        return np.frombuffer(data, np.uint8, offset=header).reshape(found).copy()

    def _contents(self, path: Path) -> bytes:
        data = read_bytes(self.name, path)
        if path.suffix != ".gz":
            return data
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(self.name, path, f"cannot be unpacked ({error})") from None

    def _packing(self, folder: Path, file: str) -> Path | None:
        paths = (folder / file, folder / f"{file}.gz")
        return next((path for path in paths if is_file(self.name, path)), None)


MNIST = IdxSource(
    name="mnist",
    folders=("mnist", "MNIST/raw"),
    md5={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    published=PUBLISHED["mnist"],
)
FASHION_MNIST = IdxSource(
    name="fashion-mnist",
    folders=("fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
    md5={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    published=PUBLISHED["fashion-mnist"],
)
