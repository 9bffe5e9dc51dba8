"""MNIST and Fashion-MNIST in their own format: four idx files, plain or gzipped.

A folder is read only when it holds the published files; a gzipped file is judged by its contents,
since the same contents are packed in more than one way (Debian's packages, for one).
"""

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedacg.data.examples import Contents, TensorExamples
from fedacg.data.files import check, damaged, missing

_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class IdxSource:
    """Where a data set in idx files may lie, and what must be in it."""

    name: str
    folders: tuple[str, ...]
    """Below the data root, or absolute."""
    md5: Mapping[str, str]
    """Of the unpacked files."""
    train: int = 60_000
    test: int = 10_000
    side: int = 28
    classes: int = 10

    def find(self, root: Path) -> Path | None:
        """The first folder that has all four files, else the first that is there at all."""
        folders = [folder for folder in self._places(root) if folder.is_dir()]
        whole = (folder for folder in folders if all(_packing(folder, file) for file in _FILES))
        return next(whole, folders[0] if folders else None)

    def read(self, root: Path) -> Contents:
        """The training and the test examples: images (N, 1, 28, 28) in bytes."""
        folder = self.find(root)
        if folder is None:
            raise missing(self.name, self._places(root), f"{', '.join(_FILES)} (plain or .gz)")
        images, labels, test_images, test_labels = _FILES
        return Contents(
            self._examples(folder, images, labels, self.train),
            self._examples(folder, test_images, test_labels, self.test),
        )

    def _places(self, root: Path) -> list[Path]:
        return [root / folder for folder in self.folders]

    def _examples(self, folder: Path, images: str, labels: str, count: int) -> TensorExamples:
        x = self._array(folder, images, (count, self.side, self.side))
        y = self._array(folder, labels, (count,))
        if y.max(initial=0) >= self.classes:
            raise damaged(self.name, folder / labels, f"has the label {y.max()}, beyond {self.classes - 1}")
        return TensorExamples(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y).long())

    def _array(self, folder: Path, file: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        path = _packing(folder, file)
        if path is None:
            raise damaged(self.name, folder / file, "is missing (and so is its .gz)")
        data = self._contents(path)
        header = struct.pack(f">HBB{len(shape)}I", 0, 0x08, len(shape), *shape)
        if len(data) < len(header):
            raise damaged(self.name, path, f"is cut short: {len(data)} bytes")
        if data[:4] != header[:4]:
            raise damaged(self.name, path, f"does not begin as an idx file of bytes in {len(shape)} dimensions")
        if data[: len(header)] != header:
            found = struct.unpack_from(f">{len(shape)}I", data, 4)
            raise damaged(self.name, path, f"holds an array of shape {found} where there should be {shape}")
        check(self.name, path, data, len(header) + math.prod(shape), self.md5.get(file))
        return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape).copy()

    def _contents(self, path: Path) -> bytes:
        data = path.read_bytes()
        if path.suffix != ".gz":
            return data
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(self.name, path, f"cannot be unpacked ({error})") from None


def _packing(folder: Path, file: str) -> Path | None:
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)


MNIST = IdxSource(
    name="mnist",
    folders=("mnist", "MNIST/raw"),
    md5={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
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
)
