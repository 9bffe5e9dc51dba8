"""CIFAR's files in the official layouts, made small."""

import io
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedacg.data.origins import Published
from fedacg.data.sources import cifar
from fedacg.data.sources.cifar import Batch, CifarSource, Layout


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Texts and bytes as Python 2 wrote them, which is how CIFAR's archives were made."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, text: str | bytes) -> None:
        raw = text.encode("latin1") if isinstance(text, str) else text
        self.write(b"T" + struct.pack("<i", len(raw)) + raw)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(value: object) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def records(count: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, classes, count)


def in_binary(x: np.ndarray, y: np.ndarray, coarse: bool) -> bytes:
    labels = [np.zeros_like(y), y] if coarse else [y]
    return np.concatenate([*(label[:, None] for label in labels), x], axis=1).astype(np.uint8).tobytes()


def in_pickle(x: np.ndarray, y: np.ndarray, coarse: bool) -> bytes:
    if coarse:
        return python2_pickle({"data": x, "fine_labels": y.tolist(), "coarse_labels": [0] * len(y)})
    return python2_pickle(
        {"data": x, "labels": y.tolist(), "batch_label": "training batch", "filenames": ["a.png"]}
    )


def small(source: CifarSource, count: int = 6) -> CifarSource:
    """The same layouts with few records a file, and no checksums."""

    def shrink(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
        return tuple(Batch(batch.file, count) for batch in batches)

    layouts = (replace(layout, train=shrink(layout.train), test=shrink(layout.test)) for layout in source.layouts)
    return replace(source, layouts=tuple(layouts), published=Published())


def write(root: Path, layout: Layout, classes: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Make the folder of a layout; the contents of its files."""
    made = {}
    encode = in_binary if isinstance(layout.format, cifar.Binary) else in_pickle
    (root / layout.folder).mkdir(parents=True)
    for seed, batch in enumerate(layout.train + layout.test):
        made[batch.file] = records(batch.records, classes, seed)
        (root / layout.folder / batch.file).write_bytes(encode(*made[batch.file], coarse=classes == 100))
    return made
