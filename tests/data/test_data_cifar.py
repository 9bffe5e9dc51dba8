"""CIFAR's readers on small files in the official layouts, whole, missing, cut short and altered."""

import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedacg.data import catalogue
from fedacg.data.files import data_root, md5
from fedacg.data.sources import cifar, pickles
from fedacg.data.sources.cifar import CifarSource, Layout
from fedacg.errors import InputError
from support.cifar_files import python2_pickle, small, write


def pack(root: Path, layout: Layout) -> Layout:
    """Turn the folder of a layout into its archive, and publish the archive's checksum."""
    with tarfile.open(root / layout.archive, "w:gz") as tar:
        tar.add(root / layout.folder, layout.folder)
    for file in (root / layout.folder).iterdir():
        file.unlink()
    (root / layout.folder).rmdir()
    return replace(layout, archive_md5=md5((root / layout.archive).read_bytes()))


SOURCES = [cifar.CIFAR10, cifar.CIFAR100]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("which", [0, 1], ids=["binary", "python"])
@pytest.mark.parametrize("published", SOURCES, ids=lambda source: source.name)
def test_every_layout_gives_the_same_examples(
    tmp_path: Path, published: CifarSource, which: int, packed: bool
) -> None:
    source = small(published)
    layout = source.layouts[which]
    made = write(tmp_path, layout, source.classes)
    if packed:
        source = replace(source, layouts=(pack(tmp_path, layout),))
    contents = source.read(tmp_path)
    train, test = contents.train, contents.test
    assert (train.x.dtype, train.y.dtype) == (torch.uint8, torch.int64)
    assert test.x.shape == (6, 3, 32, 32)
    expected = [made[batch.file] for batch in layout.train]
    assert np.array_equal(train.x.flatten(1).numpy(), np.concatenate([x for x, _ in expected]))
    assert train.y.tolist() == np.concatenate([y for _, y in expected]).tolist()
    assert test.y.tolist() == made[layout.test[0].file][1].tolist()


def test_missing_data_are_told_where_they_were_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    with pytest.raises(InputError) as refusal:
        catalogue.load("cifar10")
    for expected in (
        f"{tmp_path}/cifar-10-batches-bin",
        f"{tmp_path}/cifar-10-python.tar.gz",
        "fedacg data get cifar10",
        "FEDACG_DATA",
    ):
        assert expected in str(refusal.value)


def test_a_folder_that_lacks_a_file_is_passed_over_for_a_whole_archive(tmp_path: Path) -> None:
    source = small(cifar.CIFAR10)
    binary, python = source.layouts
    write(tmp_path, python, 10)
    source = replace(source, layouts=(binary, pack(tmp_path, python)))
    write(tmp_path, binary, 10)
    (tmp_path / binary.folder / "data_batch_3.bin").unlink()
    assert source.find(tmp_path) == tmp_path / python.archive
    (tmp_path / python.archive).unlink()
    with pytest.raises(InputError, match=r"data_batch_3.bin is missing"):
        source.read(tmp_path)


def test_a_file_that_is_cut_short_is_named_with_its_size(tmp_path: Path) -> None:
    source = small(cifar.CIFAR10)
    write(tmp_path, source.layouts[0], 10)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        InputError, match=rf"{path} is cut short: {6 * 3073 - 1} bytes where there should be {6 * 3073}"
    ):
        source.read(tmp_path)


def test_a_pickle_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    source = small(cifar.CIFAR100)
    write(tmp_path, source.layouts[1], 100)
    path = tmp_path / "cifar-100-python" / "train"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=rf"{path} cannot be read as a pickle"):
        source.read(tmp_path)


@pytest.mark.parametrize("cut", [10, 5_000])
def test_an_archive_that_is_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    source = small(cifar.CIFAR10)
    write(tmp_path, source.layouts[0], 10)
    pack(tmp_path, source.layouts[0])
    path = tmp_path / "cifar-10-binary.tar.gz"
    short = path.read_bytes()[:cut]
    path.write_bytes(short)
    # The checksum would see it too; here it is told to agree, to see that unpacking notices by itself.
    layout = replace(source.layouts[0], archive_md5=md5(short))
    with pytest.raises(InputError, match=rf"{path} cannot be unpacked"):
        replace(source, layouts=(layout,)).read(tmp_path)


def test_an_archive_without_one_of_its_files_is_refused(tmp_path: Path) -> None:
    source = small(cifar.CIFAR10)
    write(tmp_path, source.layouts[0], 10)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    layout = pack(tmp_path, source.layouts[0])
    with pytest.raises(InputError, match=r"lacks cifar-10-batches-bin/test_batch.bin"):
        replace(source, layouts=(layout,)).read(tmp_path)


def test_an_altered_archive_whose_files_have_no_published_checksum_is_refused(tmp_path: Path) -> None:
    source = small(cifar.CIFAR100)
    write(tmp_path, source.layouts[0], 100)
    pack(tmp_path, source.layouts[0])
    with pytest.raises(InputError, match=r"cifar-100-binary.tar.gz was altered: .* published one 03b5dce0"):
        source.read(tmp_path)


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    source = small(cifar.CIFAR10)
    write(tmp_path, source.layouts[0], 10)
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(InputError, match=r"test_batch.bin has labels from \d to 10, beyond 0 to 9"):
        source.read(tmp_path)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"labels": [1] * 6}, 'has no images of 3072 bytes under "data"'),
        ({"data": np.zeros((6, 3072), np.uint8)}, "has not one whole number per image"),
        ({"data": np.zeros((6, 3072), np.uint8), "labels": [1] * 5}, "has not one whole number per image"),
        ({"data": np.zeros((5, 3072), np.uint8), "labels": [1] * 5}, "has 5 images where there should be 6"),
        ({"data": np.zeros((6, 3072)), "labels": [1] * 6}, "has an array of 'f8', not of bytes"),
        ([1, 2], "is not a dictionary"),
    ],
)
def test_a_pickle_with_something_else_in_it_is_refused(tmp_path: Path, contents: object, message: str) -> None:
    source = small(cifar.CIFAR10)
    write(tmp_path, source.layouts[1], 10)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(python2_pickle(contents))
    with pytest.raises(InputError, match=message):
        source.read(tmp_path)


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_before_it_runs(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "it ran"
    evil = pickle.dumps({"data": Malicious(mark)}, protocol)
    with pytest.raises(pickles.Refused, match="which has no place in it"):
        pickles.loads(evil)
    assert not mark.exists()
    pickle.loads(evil)
    assert mark.exists(), "the pickle would have done nothing anyway, so the test proved nothing"


@pytest.mark.parametrize("name", [b"os\nsystem", b"builtins\neval", b"numpy\nload", b"numpy\nndarray.tofile"])
def test_nothing_but_arrays_of_bytes_can_be_named(name: bytes) -> None:
    with pytest.raises(pickles.Refused):
        pickles.loads(b"\x80\x04c" + name + b"\n(X\x01\x00\x00\x00.tR.")


def test_a_file_of_the_right_size_and_plausible_labels_is_refused_by_its_checksum(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for batch in cifar.CIFAR10.layouts[0].train + cifar.CIFAR10.layouts[0].test:
        with (folder / batch.file).open("wb") as file:
            file.truncate(30_730_000)
    with pytest.raises(
        InputError, match=r"data_batch_1.bin was altered: its md5 is .*, the published one 5dd7e06a"
    ):
        catalogue.load("cifar10")


def test_real_cifar10_has_its_published_numbers() -> None:
    if catalogue.where("cifar10") is None:
        pytest.skip(f"CIFAR-10 is not in {data_root()}: set FEDACG_DATA, or run `fedacg data get cifar10`")
    whole = catalogue.load("cifar10", augment=True)
    assert whole.train.x.shape == (50_000, 3, 32, 32)
    assert whole.test.x.shape == (10_000, 3, 32, 32)
    assert whole.train.y.bincount().tolist() == [5000] * 10
    assert whole.test.y.bincount().tolist() == [1000] * 10
    assert whole.train.y[:5].tolist() == [6, 9, 9, 4, 1]
    x = whole.pipeline(whole.train.x[:20_000])
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3), atol=0.02)
    assert torch.allclose(x.std((0, 2, 3)), torch.ones(3), atol=0.02)
