"""JPEG files for the readers' tests: random pictures, and what Pillow makes of their bytes."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def jpeg(seed: int, width: int = 64, height: int = 64, mode: str = "RGB") -> bytes:
    """A picture of coloured patches."""
    rng = np.random.default_rng(seed)
    patches = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    file = io.BytesIO()
    patches.resize((width, height)).convert(mode).save(file, "JPEG")
    return file.getvalue()


def pixels(data: bytes) -> np.ndarray:
    """The RGB channels of a file, as Pillow decodes it."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)


def pack(folder: Path, below: Path, archive: Path) -> None:
    """Put a folder in a zip file, under its path below another."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, path.relative_to(below))


def overwrite(path: Path, data: bytes) -> None:
    """Other contents in place, so that the file's folder does not change."""
    folder = path.parent.stat()
    path.write_bytes(data)
    os.utime(path.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))
