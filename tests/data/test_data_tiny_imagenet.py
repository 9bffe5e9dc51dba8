"""Tiny-ImageNet's reader on small files in the official layout, whole, missing, damaged and changed."""

import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedacg.data import catalogue, files
from fedacg.data.examples import Contents
from fedacg.data.files import data_root, file_checksum
from fedacg.data.origins import Published
from fedacg.data.sources import jpegs, tiny_imagenet
from fedacg.data.sources.tiny_imagenet import TinyImageNetSource
from fedacg.errors import InputError, RunError
from support.checksums import md5
from support.pictures import jpeg, overwrite, pack, pixels

SOURCE = TinyImageNetSource(classes=8, archive_md5=md5(b""), published=Published(24, 10, train_per_class=3))
FOLDER = "tiny-imagenet-200"
WNIDS = [f"n0{number}" for number in (4200, 1443, 9999, 2124, 1629, 3000, 1000, 5555)]
"""In the order of wnids.txt, which is not alphabetical in the real one either."""
EACH, TEST = 3, 10


def image_of(wnid: str, number: int) -> Path:
    return Path(FOLDER, "train", wnid, "images", f"{wnid}_{number}.JPEG")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with a small Tiny-ImageNet, to be copied."""
    root = tmp_path_factory.mktemp("made")
    for index, wnid in enumerate(WNIDS):
        (root / FOLDER / "train" / wnid / "images").mkdir(parents=True)
        (root / FOLDER / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        for number in range(EACH):
            mode = "L" if number == 1 else "RGB"
            (root / image_of(wnid, number)).write_bytes(jpeg(100 * index + number, mode=mode))
    (root / FOLDER / "val" / "images").mkdir(parents=True)
    for number in range(TEST):
        (root / FOLDER / "val" / "images" / f"val_{number}.JPEG").write_bytes(jpeg(9000 + number))
    lines = [f"val_{number}.JPEG\t{WNIDS[number % 8]}\t0\t32\t44\t62\n" for number in range(TEST)]
    (root / FOLDER / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / FOLDER / "wnids.txt").write_text("\n".join(WNIDS))
    (root / FOLDER / "words.txt").write_text("n00001740\tentity\n")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "data"
    shutil.copytree(made, root)
    monkeypatch.setenv("FEDACG_DATA", str(root))
    return root


@pytest.fixture(autouse=True)
def any_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is packed here has no published checksum; test_an_altered_archive_is_refused sees to that."""
    monkeypatch.setattr(tiny_imagenet, "file_checksum", lambda *_: md5(b""))


def zipped(root: Path) -> None:
    """The same files in an archive alone."""
    pack(root / FOLDER, root, root / f"{FOLDER}.zip")
    shutil.rmtree(root / FOLDER)


def everything(contents: Contents) -> tuple[np.ndarray, list[int], np.ndarray, list[int]]:
    train, test = (part.fetch(torch.arange(len(part))) for part in (contents.train, contents.test))
    return train[0].numpy(), train[1].tolist(), test[0].numpy(), test[1].tolist()


def prepared(root: Path) -> list[Path]:
    return [path for path in (root / "prepared").iterdir() if path.is_dir()]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_both_layouts_give_the_images_that_pillow_decodes(root: Path, made: Path, packed: bool) -> None:
    if packed:
        zipped(root)
    assert SOURCE.find(root) == root / (f"{FOLDER}.zip" if packed else FOLDER)
    x, y, test_x, test_y = everything(SOURCE.read(root))
    assert (x.dtype, x.shape, test_x.shape) == (np.uint8, (8 * EACH, 3, 64, 64), (TEST, 3, 64, 64))
    in_order = sorted(WNIDS)
    expected = [image_of(wnid, number) for wnid in in_order for number in range(EACH)]
    assert np.array_equal(x, np.stack([pixels((made / path).read_bytes()) for path in expected]))
    assert y == [label for label in range(8) for _ in range(EACH)]
    val = [(made / FOLDER / "val" / "images" / f"val_{n}.JPEG").read_bytes() for n in range(TEST)]
    assert np.array_equal(test_x, np.stack([pixels(data) for data in val]))
    assert test_y == [in_order.index(WNIDS[number % 8]) for number in range(TEST)]
    assert list(root.glob("*.JPEG")) == []


def test_a_grey_image_becomes_one_of_three_equal_channels(root: Path, made: Path) -> None:
    data = (made / image_of(sorted(WNIDS)[0], 1)).read_bytes()
    assert Image.open(io.BytesIO(data)).mode == "L"
    x = SOURCE.read(root).train.fetch(torch.tensor([1]))[0][0]
    assert torch.equal(x[0], x[1])
    assert torch.equal(x[0], x[2])
    assert np.array_equal(x[0].numpy(), np.asarray(Image.open(io.BytesIO(data))))


def test_without_a_list_of_wnids_the_folders_are_the_classes(root: Path) -> None:
    listed = everything(SOURCE.read(root))
    (root / FOLDER / "wnids.txt").unlink()
    (root / FOLDER / "train" / ".hidden").mkdir()
    found = everything(SOURCE.read(root))
    assert len(prepared(root)) == 2
    assert all(np.array_equal(one, other) for one, other in zip(listed, found, strict=True))


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_what_other_systems_leave_in_folders_is_passed_over(root: Path, packed: bool) -> None:
    for folder in (f"train/{WNIDS[0]}/images", "val/images"):
        (root / FOLDER / folder / "._hidden.JPEG").write_bytes(b"notes")
        (root / FOLDER / folder / "Thumbs.db").write_bytes(b"notes")
    if packed:
        zipped(root)
    contents = SOURCE.read(root)
    assert (len(contents.train), len(contents.test)) == (8 * EACH, TEST)


def test_a_class_that_lacks_images_is_refused_unless_the_user_says_so(root: Path) -> None:
    (root / image_of(sorted(WNIDS)[2], 0)).unlink()
    (root / image_of(sorted(WNIDS)[5], 0)).unlink()
    with pytest.raises(InputError) as refusal:
        SOURCE.read(root)
    for expected in (
        "has 22 training examples where there should be 24",
        "has 2 training examples of class 2 where there should be 3 (and 1 other classes differ)",
        "data.partial = true",
        "fedacg data get tiny-imagenet",
    ):
        assert expected in str(refusal.value)
    contents = SOURCE.read(root, partial=True)
    assert len(contents.differences) == 2
    train = contents.train
    assert np.bincount(train.fetch(torch.arange(len(train)))[1]).tolist() == [3, 3, 2, 3, 3, 2, 3, 3]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_the_second_read_opens_no_image(root: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    if packed:
        zipped(root)
    first = everything(SOURCE.read(root))
    monkeypatch.setattr(jpegs, "opened", lambda *_: pytest.fail("the files were read again"))
    again = everything(SOURCE.read(root))
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))


def test_changed_annotations_are_seen(root: Path) -> None:
    before = everything(SOURCE.read(root))[3]
    path = root / FOLDER / "val" / "val_annotations.txt"
    path.write_text(path.read_text().replace(f"val_0.JPEG\t{WNIDS[0]}", f"val_0.JPEG\t{WNIDS[1]}"))
    after = everything(SOURCE.read(root))[3]
    assert (after[0], after[1:]) == (sorted(WNIDS).index(WNIDS[1]), before[1:])
    assert before[0] != after[0]


@pytest.mark.parametrize("folder", [f"train/{WNIDS[5]}/images", "val/images"])
def test_an_image_that_is_gone_is_noticed_by_its_folder(root: Path, folder: str) -> None:
    SOURCE.read(root)
    next((root / FOLDER / folder).iterdir()).unlink()
    if folder == "val/images":
        with pytest.raises(InputError, match="is missing, though line"):
            SOURCE.read(root)
    else:
        assert len(SOURCE.read(root, partial=True).train) == 8 * EACH - 1


def test_a_changed_archive_is_read_again(root: Path) -> None:
    zipped(root)
    first = everything(SOURCE.read(root))
    with zipfile.ZipFile(root / f"{FOLDER}.zip", "a") as archive:
        archive.writestr(str(image_of(WNIDS[6], 3)), jpeg(77))  # WNIDS[6] is the first class
    x, y, _, _ = everything(SOURCE.read(root, partial=True))
    assert len(x) == len(first[0]) + 1
    assert y[:5] == [0, 0, 0, 0, 1]
    assert np.array_equal(x[3], pixels(jpeg(77)))


def test_what_takes_a_moment_is_silent_where_there_is_no_terminal(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    SOURCE.read(root)
    assert capfd.readouterr() == ("", "")


def test_what_takes_longer_is_told_every_few_seconds_where_there_is_no_terminal(
    root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "EVERY", 0.0)
    monkeypatch.setattr(jpegs, "_STEP", 10)
    SOURCE.read(root)
    shown = capfd.readouterr()
    assert shown.out == ""
    lines = [line for line in shown.err.splitlines() if line.startswith("preparing")]
    assert lines == [f"preparing tiny-imagenet, once: {done} of 34 images" for done in (10, 20, 24, 34)]


def test_on_a_terminal_a_bar_is_shown_on_stderr(
    root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, this is a terminal
    SOURCE.read(root)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "preparing tiny-imagenet" in shown.err
    assert f"{8 * EACH + TEST}/{8 * EACH + TEST}" in shown.err


def test_missing_data_are_told_where_they_were_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    assert catalogue.where("tiny-imagenet") is None
    with pytest.raises(InputError) as refusal:
        catalogue.load("tiny-imagenet")
    for expected in (
        f"{tmp_path}/{FOLDER}\n",
        f"{tmp_path}/{FOLDER}.zip",
        "train/<wnid>/images/",
        "val/val_annotations.txt",
        "fedacg data get tiny-imagenet",
    ):
        assert expected in str(refusal.value)


def test_an_image_overwritten_in_place_is_noticed(root: Path, made: Path) -> None:
    first = everything(SOURCE.read(root))
    name = image_of(sorted(WNIDS)[0], 0)
    overwrite(root / name, jpeg(4321))
    again = everything(SOURCE.read(root))
    assert np.array_equal(again[0][0], pixels(jpeg(4321)))
    assert np.array_equal(again[0][1:], first[0][1:])
    assert len(prepared(root)) == 2


def test_many_images_are_decoded_by_processes_with_the_same_result(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = everything(SOURCE.read(root))
    monkeypatch.setattr(jpegs, "_FEW", 0)
    monkeypatch.setattr(jpegs, "_STEP", 5)
    contents = SOURCE.read(root, fresh=True)
    assert all(np.array_equal(one, other) for one, other in zip(here, everything(contents), strict=True))
    path = root / image_of(sorted(WNIDS)[3], 1)
    overwrite(path, b"garbage")
    with pytest.raises(InputError, match=rf"{path} cannot be decoded \(not a JPEG file\)"):
        SOURCE.read(root)
    assert len(prepared(root)) == 1


def test_ctrl_c_ends_the_decoding_processes_and_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jpegs, "_FEW", 0)
    monkeypatch.setattr(jpegs, "_STEP", 2)
    started: list[jpegs._Process] = []
    make = jpegs._Process.__init__

    def start(self: jpegs._Process, *arguments: Path | int, **options: bool) -> None:
        make(self, *arguments, **options)  # type: ignore[arg-type]
        started.append(self)

    @contextmanager
    def interrupt(*_: object) -> Iterator[Callable[[int], None]]:
        def stop(count: int) -> None:
            raise KeyboardInterrupt

        yield stop

    monkeypatch.setattr(jpegs._Process, "__init__", start)
    monkeypatch.setattr(tiny_imagenet, "progress", interrupt)
    with pytest.raises(KeyboardInterrupt):
        SOURCE.read(root)
    assert started
    assert all(worker._process.returncode is not None for worker in started)
    assert prepared(root) == []


def test_a_decoding_process_that_dies_ends_the_load_with_a_message(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jpegs, "_FEW", 0)
    monkeypatch.setattr(jpegs.decode, "__file__", os.devnull)  # a program that ends at once
    with pytest.raises(RunError, match="a process that decodes images ended with code 0"):
        SOURCE.read(root)
    assert prepared(root) == []


def test_an_altered_archive_is_refused_unless_the_user_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped(root)
    archive = root / f"{FOLDER}.zip"
    monkeypatch.setattr(tiny_imagenet, "file_checksum", file_checksum)
    with pytest.raises(InputError, match=f"{archive} was altered: its md5 is .*, the published one is d41d8cd9"):
        SOURCE.read(root)
    assert SOURCE.read(root, partial=True).differences[0].startswith("was altered")
    right = replace(SOURCE, archive_md5=md5(archive.read_bytes()), version=99)
    assert right.read(root).differences == ()


@pytest.mark.parametrize("top", ["", "tiny/", "data/tiny-imagenet-200/"])
def test_an_archive_packed_again_under_another_folder_is_judged_by_its_contents(
    root: Path, monkeypatch: pytest.MonkeyPatch, top: str
) -> None:
    monkeypatch.setattr(tiny_imagenet, "file_checksum", file_checksum)
    expected = everything(SOURCE.read(root))
    with zipfile.ZipFile(root / f"{FOLDER}.zip", "w") as archive:
        for path in sorted((root / FOLDER).rglob("*")):
            name = f"{top}{path.relative_to(root / FOLDER)}"
            archive.write(path, name)
            if path.is_file():
                archive.writestr(f"__MACOSX/{name}", b"notes of macOS")
    shutil.rmtree(root / FOLDER)
    found = everything(SOURCE.read(root))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_folder_within_a_folder_of_the_same_name_is_found(root: Path) -> None:
    expected = everything(SOURCE.read(root))
    (root / FOLDER).rename(root / "inner")
    (root / FOLDER).mkdir()
    (root / "inner").rename(root / FOLDER / FOLDER)
    found = everything(SOURCE.read(root))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert len(prepared(root)) == 1


def test_a_damaged_folder_is_passed_over_for_a_good_archive_and_not_tried_again(
    root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(root / FOLDER, root, root / f"{FOLDER}.zip")
    overwrite(root / image_of(WNIDS[0], 0), b"garbage")
    contents = SOURCE.read(root)
    assert contents.copy == root / f"{FOLDER}.zip"
    note = capfd.readouterr().err
    assert note.startswith("note: data set 'tiny-imagenet': ")
    assert f"cannot be decoded (not a JPEG file); skipped in favour of {root / FOLDER}.zip" in note
    monkeypatch.setattr(jpegs, "opened", lambda *_: pytest.fail("the files were read again"))
    assert len(SOURCE.read(root).train) == 24


def test_when_no_copy_is_good_each_is_named(root: Path) -> None:
    pack(root / FOLDER, root, root / f"{FOLDER}.zip")
    overwrite(root / image_of(WNIDS[0], 0), b"garbage")
    (root / f"{FOLDER}.zip").write_bytes(b"garbage")
    with pytest.raises(InputError) as refusal:
        SOURCE.read(root)
    first, second, advice = str(refusal.value).splitlines()
    assert "cannot be decoded" in first
    assert "cannot be read as a zip file" in second
    assert advice == "replace it, or run: fedacg data get tiny-imagenet"


def test_an_empty_folder_is_no_copy(root: Path) -> None:
    shutil.rmtree(root / FOLDER)
    (root / FOLDER).mkdir()
    assert SOURCE.find(root) is None
    with pytest.raises(InputError, match="was not found"):
        SOURCE.read(root)


def test_a_folder_that_lacks_a_part_is_passed_over_for_the_archive(root: Path) -> None:
    pack(root / FOLDER, root, root / f"{FOLDER}.zip")
    assert SOURCE.find(root) == root / FOLDER
    shutil.rmtree(root / FOLDER / "val")
    assert SOURCE.find(root) == root / f"{FOLDER}.zip"
    assert len(SOURCE.read(root).test) == TEST


def test_the_official_source_wants_two_hundred_classes(root: Path) -> None:
    with pytest.raises(InputError, match=r"wnids.txt has 8 classes where there should be 200"):
        tiny_imagenet.TINY_IMAGENET.read(root)
    (root / FOLDER / "wnids.txt").unlink()
    with pytest.raises(InputError, match=r"train has 8 classes where there should be 200"):
        catalogue.load("tiny-imagenet")


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    return file.getvalue()


def sized(width: int, height: int) -> bytes:
    """A small file whose header says that the image is of this size."""
    data = jpeg(0)
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 4 :]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"garbage" * 100, r"cannot be decoded \(not a JPEG file\)"),
        (b"", r"cannot be decoded \(not a JPEG file\)"),
        (png(), r"cannot be decoded \(not a JPEG file\)"),
        (jpeg(1)[: len(jpeg(1)) // 2], r"cannot be decoded \(.*truncated"),
        (jpeg(1)[:300], r"cannot be decoded \("),
        (jpeg(1, 32, 64), "is 32×64 pixels, not 64×64"),
        (sized(12_000, 12_000), "is 12000×12000 pixels, not 64×64"),
        (sized(65_000, 65_000), "is an image too large to be part of the data set"),
    ],
    ids=["garbage", "empty", "png", "half", "header", "wrong size", "large", "bomb"],
)
def test_an_image_that_does_not_decode_is_named(root: Path, data: bytes, message: str, packed: bool) -> None:
    path = image_of(WNIDS[3], 2)
    overwrite(root / path, data)
    if packed:
        zipped(root)
    where = f"{FOLDER}.zip/{path}" if packed else path
    with pytest.raises(InputError, match=f"data set 'tiny-imagenet': {root}/{where} {message}"):
        SOURCE.read(root)
    assert prepared(root) == []


def annotations(change: Callable[[str], str]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "val" / "val_annotations.txt"
        path.write_text(change(path.read_text()))

    return apply


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an annotation without its image": (
        lambda folder: (folder / "val/images/val_4.JPEG").unlink(),
        r"val/images/val_4.JPEG is missing, though line 5 of val/val_annotations.txt names it",
    ),
    "an image that no line names": (
        lambda folder: (folder / "val/images/val_10.JPEG").write_bytes(jpeg(0)),
        r"val/images/val_10.JPEG has no line in val/val_annotations.txt",
    ),
    "an unknown wnid": (
        annotations(lambda text: text.replace(f"val_2.JPEG\t{WNIDS[2]}", "val_2.JPEG\tn77")),
        r"val/val_annotations.txt has the unknown wnid n77 in line 3",
    ),
    "a line of one word": (
        annotations(lambda text: text + "val_10.JPEG\n"),
        r"val/val_annotations.txt has no image and wnid in line 11",
    ),
    "an image named twice": (
        annotations(lambda text: text + f"val_3.JPEG {WNIDS[3]} 0 0 1 1\n"),
        r"val/val_annotations.txt names val_3.JPEG again in line 11",
    ),
    "annotations that are no text": (
        lambda folder: (folder / "val/val_annotations.txt").write_bytes(b"\xff\xfe\x00"),
        r"val/val_annotations.txt is not a text file",
    ),
    "no validation images at all": (
        lambda folder: (
            [shutil.rmtree(folder / "val/images"), (folder / "val/images").mkdir()]
            and (folder / "val/val_annotations.txt").write_text("")
        ),
        r"val/val_annotations.txt names no images",
    ),
    "a class without images": (
        lambda folder: [path.unlink() for path in (folder / "train" / WNIDS[1] / "images").iterdir()],
        rf"train/{WNIDS[1]}/images has no images \(\*.JPEG\)",
    ),
    "a class without a folder": (
        lambda folder: shutil.rmtree(folder / "train" / WNIDS[1]),
        rf"train/{WNIDS[1]} is missing",
    ),
    "a folder that is no class": (
        lambda folder: (folder / "train/n123/images").mkdir(parents=True),
        r"train/n123 is no class that wnids.txt lists",
    ),
    "a wnid listed twice": (
        lambda folder: (folder / "wnids.txt").write_text("\n".join([*WNIDS[:7], WNIDS[0]])),
        rf"wnids.txt lists {WNIDS[0]} twice",
    ),
    "too few wnids": (
        lambda folder: (folder / "wnids.txt").write_text("\n".join(WNIDS[:7])),
        r"wnids.txt has 7 classes where there should be 8",
    ),
}


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_together_is_refused_by_name(root: Path, fault: str, packed: bool) -> None:
    spoil, message = FAULTS[fault]
    spoil(root / FOLDER)
    if packed:
        zipped(root)
    where = f"{root}/{FOLDER}.zip" if packed else str(root)
    with pytest.raises(InputError, match=rf"{where}/{FOLDER}/{message}"):
        SOURCE.read(root)
    assert prepared(root) == []


@pytest.mark.parametrize("part", ["train", "val/images", "val/val_annotations.txt"])
def test_a_part_that_is_missing_is_named(root: Path, part: str) -> None:
    path = root / FOLDER / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match=f"{path} is missing"):
        SOURCE.read(root)
    zipped(root)
    with pytest.raises(InputError, match=rf"{FOLDER}.zip lacks {FOLDER}/{part}"):
        SOURCE.read(root)


@pytest.mark.parametrize("cut", [10, 5_000, -3_000, -10])
def test_an_archive_that_is_cut_short_is_refused(root: Path, cut: int) -> None:
    zipped(root)
    path = root / f"{FOLDER}.zip"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=f"{path} cannot be read as a zip file"):
        SOURCE.read(root)
    assert prepared(root) == []


def test_a_damaged_member_of_an_archive_is_named(root: Path) -> None:
    zipped(root)
    path = root / f"{FOLDER}.zip"
    data = bytearray(path.read_bytes())
    name = str(image_of(WNIDS[0], 0))
    at = data.index(name.encode()) + len(name) + 200
    data[at : at + 50] = bytes(50)
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"{path}/{name} cannot be unpacked"):
        SOURCE.read(root)


def test_an_archive_with_a_password_is_refused(root: Path) -> None:
    zipped(root)
    path = root / f"{FOLDER}.zip"
    data = bytearray(path.read_bytes())
    at = data.rindex(image_of(WNIDS[0], 0).name.encode())
    data[data.rindex(b"PK\x01\x02", 0, at) + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"cannot be unpacked \(.*password"):
        SOURCE.read(root)


def test_a_file_too_large_to_be_an_image_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpegs, "LARGEST", 1 << 20)
    path = root / image_of(WNIDS[0], 0)
    with path.open("wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(InputError, match=f"{path} is larger than 1 MiB"):
        SOURCE.read(root)
    zipped(root)
    with pytest.raises(InputError, match=f"{path.name} is larger than 1 MiB"):
        SOURCE.read(root)


def test_the_first_of_several_damaged_images_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpegs, "_STEP", 2)
    for wnid in sorted(WNIDS)[2:]:
        overwrite(root / image_of(wnid, 1), b"garbage")
    with pytest.raises(InputError, match=image_of(sorted(WNIDS)[2], 1).name):
        SOURCE.read(root)


def test_images_are_normalised_and_augmented_as_the_paper_does(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        catalogue, "FACTS", {"tiny-imagenet": replace(catalogue.FACTS["tiny-imagenet"], source=SOURCE)}
    )
    whole = catalogue.load("tiny-imagenet", augment=True)
    assert (whole.classes, whole.shape) == (200, (3, 64, 64))
    x, _ = whole.train.fetch(torch.arange(5))
    mean, std = torch.tensor([0.4802, 0.4481, 0.3975]), torch.tensor([0.2770, 0.2691, 0.2821])
    expected = (x / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert torch.allclose(whole.pipeline(x), expected, atol=1e-5)
    augment = whole.pipeline.augment
    assert (augment.degrees, augment.padding, augment.flip) == (10, 4, True)


def test_real_tiny_imagenet_has_its_published_numbers() -> None:
    if catalogue.where("tiny-imagenet") is None:
        pytest.skip(f"Tiny-ImageNet is not in {data_root()}: run `fedacg data get tiny-imagenet`")
    whole = catalogue.load("tiny-imagenet")
    assert (len(whole.train), len(whole.test)) == (100_000, 10_000)
    for part, each in ((whole.train, 500), (whole.test, 50)):
        assert part.labels(torch.arange(len(part))).bincount().tolist() == [each] * 200
    x = whole.pipeline(whole.train.fetch(torch.arange(0, 100_000, 10))[0])
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3), atol=0.02)
    assert torch.allclose(x.std((0, 2, 3)), torch.ones(3), atol=0.02)
