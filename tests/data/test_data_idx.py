"""MNIST's format on small files, plain and gzipped, whole, missing, cut short and altered."""

import gzip
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedacg.data import catalogue
from fedacg.data.origins import Published
from fedacg.data.sources import idx
from fedacg.errors import InputError
from support.checksums import md5

SMALL = replace(idx.MNIST, md5={}, published=Published(train=12, test=4))
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def in_idx(array: np.ndarray) -> bytes:
    header = struct.pack(">I", 0x0800 + array.ndim) + b"".join(struct.pack(">I", n) for n in array.shape)
    return header + array.tobytes()


def write(folder: Path, packed: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = []
    folder.mkdir(parents=True)
    for file, shape, top in zip(FILES, [(12, 28, 28), (12,), (4, 28, 28), (4,)], [256, 10, 256, 10], strict=True):
        arrays.append(rng.integers(0, top, shape, dtype=np.uint8))
        data = in_idx(arrays[-1])
        (folder / (f"{file}.gz" if packed else file)).write_bytes(gzip.compress(data) if packed else data)
    return arrays


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_the_files_are_read_wherever_they_may_lie(tmp_path: Path, folder: str, packed: bool) -> None:
    x, y, test_x, test_y = write(tmp_path / folder, packed)
    contents = SMALL.read(tmp_path)
    train, test = contents.train, contents.test
    assert (train.x.dtype, train.y.dtype) == (torch.uint8, torch.int64)
    assert np.array_equal(train.x.numpy(), x[:, None])
    assert np.array_equal(train.y.numpy(), y)
    assert np.array_equal(test.x.numpy(), test_x[:, None])
    assert np.array_equal(test.y.numpy(), test_y)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_missing_data_are_told_where_they_were_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    if catalogue.where(name) == Path("/usr/share/datasets/fashion-mnist"):
        pytest.skip("Debian's dataset-fashion-mnist is installed, so it is not missing")
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    with pytest.raises(InputError) as refusal:
        catalogue.load(name)
    for expected in (f"{tmp_path}/{name}", "t10k-labels-idx1-ubyte", f"fedacg data get {name}"):
        assert expected in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    (tmp_path / "mnist" / FILES[2]).unlink()
    with pytest.raises(InputError, match=rf"mnist/{FILES[2]} is missing"):
        SMALL.read(tmp_path)


def test_a_whole_folder_is_preferred_to_one_that_lacks_a_file(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    (tmp_path / "mnist" / FILES[2]).unlink()
    write(tmp_path / "MNIST/raw")
    assert SMALL.find(tmp_path) == tmp_path / "MNIST/raw"


IMAGES, LABELS = np.zeros((12, 28, 28), np.uint8), np.zeros(12, np.uint8)


@pytest.mark.parametrize(
    ("file", "contents", "message"),
    [
        (FILES[0], in_idx(IMAGES)[:-1], r"is cut short: 9423 bytes where there should be 9424"),
        (FILES[0], in_idx(IMAGES) + b"x", r"is too long: 9425 bytes where there should be 9424"),
        (FILES[0], b"\x00\x00", r"is cut short: 2 bytes"),
        (FILES[0], in_idx(LABELS) + bytes(100), "does not begin as an idx file of bytes in 3 dimensions"),
        (
            FILES[0],
            in_idx(IMAGES[:5]),
            r"holds an array of shape \(5, 28, 28\) where there should be \(12, 28, 28\)",
        ),
        (FILES[1], in_idx(LABELS + 10), "has the label 10, beyond 9"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    tmp_path: Path, file: str, contents: bytes, message: str
) -> None:
    write(tmp_path / "mnist")
    (tmp_path / "mnist" / file).write_bytes(contents)
    with pytest.raises(InputError, match=rf"mnist/{file} {message}"):
        SMALL.read(tmp_path)


@pytest.mark.parametrize("harm", ["cut", "flip", "not gzip"])
def test_a_damaged_gzip_is_named(tmp_path: Path, harm: str) -> None:
    write(tmp_path / "mnist", packed=True)
    path = tmp_path / "mnist" / f"{FILES[0]}.gz"
    data = bytearray(path.read_bytes())
    if harm == "cut":
        data = data[:-30]
    elif harm == "flip":
        data[len(data) // 2] ^= 1
    else:
        data = bytearray(b"<html>404</html>")
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"{path} cannot be unpacked"):
        SMALL.read(tmp_path)


def test_one_altered_pixel_is_noticed_by_the_checksum(tmp_path: Path) -> None:
    arrays = write(tmp_path / "mnist")
    known = replace(SMALL, md5={file: md5(in_idx(array)) for file, array in zip(FILES, arrays, strict=True)})
    known.read(tmp_path)
    arrays[0][3, 4, 5] ^= 1
    (tmp_path / "mnist" / FILES[0]).write_bytes(in_idx(arrays[0]))
    with pytest.raises(InputError, match=rf"{FILES[0]} was altered: its md5 is"):
        known.read(tmp_path)


def test_a_damaged_folder_is_passed_over_for_a_good_one(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    write(tmp_path / "MNIST/raw", packed=True)
    (tmp_path / "mnist" / FILES[0]).write_bytes(b"garbage")
    assert SMALL.read(tmp_path).copy == tmp_path / "MNIST/raw"


def test_an_empty_folder_is_no_copy(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    assert SMALL.find(tmp_path) is None


def test_fewer_images_are_used_only_when_the_user_says_so(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    (tmp_path / "mnist" / FILES[0]).write_bytes(in_idx(IMAGES[:5]))
    with pytest.raises(InputError, match="train-labels-idx1-ubyte has 12 labels for 5 images"):
        SMALL.read(tmp_path, partial=True)
    (tmp_path / "mnist" / FILES[1]).write_bytes(in_idx(LABELS[:5]))
    with pytest.raises(InputError, match="holds an array of shape"):
        SMALL.read(tmp_path)
    contents = SMALL.read(tmp_path, partial=True)
    assert len(contents.train) == 5
    assert contents.differences == ("has 5 training examples where there should be 12",)
