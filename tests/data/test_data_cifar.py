"""CIFAR's readers on small files in the official layouts, whole, missing, cut short and altered."""

import hashlib
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedacg.data import catalogue
from fedacg.data.files import data_root
from fedacg.data.origins import Published
from fedacg.data.sources import cifar
from fedacg.data.sources.cifar import Batch, CifarSource, Layout
from fedacg.errors import InputError
from support.checksums import md5
from support.cifar_files import in_binary, in_pickle, python2_pickle, records, small, write


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
    with pytest.raises(InputError, match=r"cifar-10-batches-bin lacks data_batch_3.bin"):
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
    with pytest.raises(InputError, match=r"has none of the test examples"):
        replace(source, layouts=(layout,)).read(tmp_path)


def test_an_altered_archive_whose_files_have_no_published_checksum_is_refused(tmp_path: Path) -> None:
    source = small(cifar.CIFAR100)
    write(tmp_path, source.layouts[0], 100)
    pack(tmp_path, source.layouts[0])
    with pytest.raises(InputError, match=r"cifar-100-binary.tar.gz was altered: .* published one is 03b5dce0"):
        source.read(tmp_path)


@pytest.mark.parametrize("which", [0, 1], ids=["binary", "python"])
def test_altered_labels_of_unpacked_cifar100_are_noticed(tmp_path: Path, which: int) -> None:
    for layout in cifar.CIFAR100.layouts:
        assert all(batch.checksum for batch in layout.batches), "every file of both layouts has a known checksum"
    source = small(cifar.CIFAR100)
    layout = source.layouts[which]
    write(tmp_path, layout, 100)
    folder = tmp_path / layout.folder

    def signed(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
        sums = (hashlib.sha256((folder / batch.file).read_bytes()).hexdigest() for batch in batches)
        return tuple(replace(batch, checksum=each) for batch, each in zip(batches, sums, strict=True))

    known = replace(source, layouts=(replace(layout, train=signed(layout.train), test=signed(layout.test)),))
    known.read(tmp_path)
    x, y = records(6, 100, 0)
    encode = in_binary if which == 0 else in_pickle
    (folder / layout.train[0].file).write_bytes(encode(x, y[::-1], coarse=True))
    with pytest.raises(InputError, match=f"{folder} has {layout.train[0].file}, which was altered: its sha256 is"):
        known.read(tmp_path)
    assert len(known.read(tmp_path, partial=True).differences) == 1


def test_classes_without_their_number_of_images_are_refused(tmp_path: Path) -> None:
    source = replace(small(cifar.CIFAR10), published=Published(30, 6, train_per_class=3))
    write(tmp_path, source.layouts[0], 10)
    with pytest.raises(InputError, match=r"has \d training examples of class \d where there should be 3 \(and"):
        source.read(tmp_path)


def test_a_smaller_copy_is_used_only_when_the_user_says_so(tmp_path: Path) -> None:
    source = replace(small(cifar.CIFAR10), published=Published(30, 6))
    write(tmp_path, source.layouts[0], 10)
    folder = tmp_path / "cifar-10-batches-bin"
    (folder / "data_batch_2.bin").unlink()
    cut = folder / "data_batch_3.bin"
    cut.write_bytes(cut.read_bytes()[: 2 * 3073])
    with pytest.raises(InputError, match="is cut short"):
        source.read(tmp_path)
    contents = source.read(tmp_path, partial=True)
    assert (len(contents.train), len(contents.test)) == (20, 6)
    assert contents.differences == (
        "lacks data_batch_2.bin",
        "has 20 training examples where there should be 30",
    )
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(InputError, match=f"{cut} is cut short"):
        source.read(tmp_path, partial=True)


def test_a_damaged_folder_is_passed_over_for_a_good_archive_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = small(cifar.CIFAR10)
    binary, python = source.layouts
    write(tmp_path, python, 10)
    source = replace(source, layouts=(binary, pack(tmp_path, python)))
    write(tmp_path, binary, 10)
    path = tmp_path / binary.folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert source.read(tmp_path).copy == tmp_path / python.archive
    assert capsys.readouterr().err == (
        f"note: data set 'cifar10': {path} is cut short: {6 * 3073 - 1} bytes where there should be {6 * 3073}; "
        f"skipped in favour of {tmp_path / python.archive}\n"
    )


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
    with pytest.raises(cifar.Refused, match="which does not belong in it"):
        cifar.loads(evil)
    assert not mark.exists()
    pickle.loads(evil)
    assert mark.exists(), "the pickle would have done nothing anyway, so the test proved nothing"


@pytest.mark.parametrize("name", [b"os\nsystem", b"builtins\neval", b"numpy\nload", b"numpy\nndarray.tofile"])
def test_nothing_but_arrays_of_bytes_can_be_named(name: bytes) -> None:
    with pytest.raises(cifar.Refused):
        cifar.loads(b"\x80\x04c" + name + b"\n(X\x01\x00\x00\x00.tR.")


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
        InputError, match=r"has data_batch_1.bin, which was altered: its md5 is .*, the published one is 5dd7e06a"
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
