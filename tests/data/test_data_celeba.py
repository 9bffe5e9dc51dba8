"""CelebA's reader on small files in the official layout: LEAF's rules, and what is refused."""

import io
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedacg.config.sections import DataSettings
from fedacg.data import catalogue
from fedacg.data.examples import Contents
from fedacg.data.files import data_root
from fedacg.data.origins import Published
from fedacg.data.sources import celeba, decode, jpegs
from fedacg.errors import InputError
from support.checksums import md5
from support.pictures import jpeg, overwrite, pack

SOURCE = replace(celeba.CELEBA, images=31, md5={}, published=Published(together=27, clients=3))
ATTRIBUTES = ("Male", "Smiling", "Young")
SIZES = {2880: 5, 12: 10, 7: 4, 300: 12}
"""How many images each person has; person 7 has too few."""
PEOPLE = [person for number in range(12) for person, size in SIZES.items() if number < size]
"""Who is on each image, in the order of the images."""


def name_of(number: int) -> str:
    return f"{number + 1:06d}.jpg"


def smiles(number: int) -> bool:
    return number % 3 == 0


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small CelebA, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "img_align_celeba").mkdir()
    for number in range(len(PEOPLE)):
        mode = "L" if number == 0 else "RGB"
        (folder / "img_align_celeba" / name_of(number)).write_bytes(jpeg(number, 178, 218, mode))
    people = [f"{name_of(number)} {person}\n" for number, person in enumerate(PEOPLE)]
    (folder / "identity_CelebA.txt").write_text("".join(people))
    rows = [f"{name_of(n)} -1 {' 1' if smiles(n) else '-1'}  1\n" for n in range(len(PEOPLE))]
    header = f"{len(PEOPLE)}\n{' '.join(ATTRIBUTES)} \n"
    (folder / "list_attr_celeba.txt").write_text(header + "".join(rows))
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "data"
    shutil.copytree(made, root / "celeba")
    monkeypatch.setenv("FEDACG_DATA", str(root))
    monkeypatch.setitem(catalogue.FACTS, "celeba", replace(catalogue.FACTS["celeba"], source=SOURCE))
    return root


def zipped(place: Path) -> None:
    pack(place / "img_align_celeba", place, place / "img_align_celeba.zip")
    shutil.rmtree(place / "img_align_celeba")


def everything(contents: Contents) -> tuple[torch.Tensor, ...]:
    parts = (contents.train, contents.test)
    return tuple(tensor for part in parts for tensor in part.fetch(torch.arange(len(part))))


def as_leaf_does(path: Path) -> np.ndarray:
    resized = Image.open(path).resize((84, 84)).convert("RGB")
    return np.asarray(resized).transpose(2, 0, 1)


def prepared(root: Path) -> list[Path]:
    return [path for path in (root / "prepared").iterdir() if path.is_dir()]


def test_persons_with_five_images_are_the_owners_in_the_order_of_their_numbers(root: Path) -> None:
    owners = SOURCE.read(root).owners
    assert owners is not None
    assert owners.names == ("12", "300", "2880")
    # nine tenths, rounded down, of 10, 12 and 5
    assert owners.train.tolist() == [0, 9, 19, 23]
    assert owners.test.tolist() == [0, 1, 3, 4]


def test_every_image_of_an_owner_is_there_once_with_its_label(root: Path, made: Path) -> None:
    contents = SOURCE.read(root)
    owners = contents.owners
    assert owners is not None
    train_x, train_y, test_x, test_y = everything(contents)
    assert (train_x.dtype, train_x.shape[1:], train_y.dtype) == (torch.uint8, (3, 84, 84), torch.int64)
    for owner, person in enumerate((12, 300, 2880)):
        a, b = owners.train[owner : owner + 2]
        c, d = owners.test[owner : owner + 2]
        found = [*zip(train_x[a:b], train_y[a:b], strict=True), *zip(test_x[c:d], test_y[c:d], strict=True)]
        theirs = [number for number, whose in enumerate(PEOPLE) if whose == person]
        expected = [(as_leaf_does(made / "img_align_celeba" / name_of(n)).tobytes(), smiles(n)) for n in theirs]
        assert sorted((x.numpy().tobytes(), bool(y)) for x, y in found) == sorted(expected)


def test_a_grey_image_becomes_one_of_three_equal_channels(root: Path, made: Path) -> None:
    grey = as_leaf_does(made / "img_align_celeba" / name_of(0))
    assert np.array_equal(grey[0], grey[2])
    x, _, test_x, _ = everything(SOURCE.read(root))
    assert any(np.array_equal(grey, image.numpy()) for image in (*x, *test_x))


def test_the_cut_of_a_person_depends_on_nobody_else(root: Path, made: Path) -> None:
    """One person fewer, another seed of NumPy's own generator: the others are cut as before."""
    contents = SOURCE.read(root)
    test_x = everything(contents)[2]
    (root / "celeba" / "identity_CelebA.txt").write_text(
        "".join(f"{name_of(n)} {12345 if person == 300 else person}\n" for n, person in enumerate(PEOPLE))
    )
    again = SOURCE.read(root)
    assert again.owners is not None
    assert again.owners.names == ("12", "2880", "12345")
    assert torch.equal(everything(again)[2][:2], test_x[[0, 3]])


def test_the_cut_is_random_not_the_last_images(root: Path) -> None:
    images = [name_of(number) for number in range(30)]
    cuts = [celeba._cut(person, images) for person in range(50)]
    assert all(len(test) == 3 for _, test in cuts)
    assert all(sorted(train + test) == images for train, test in cuts)
    assert len({image for _, test in cuts for image in test}) > 25


@pytest.mark.parametrize("place", ["celeba", "celeba/raw", "leaf/celeba/data/raw"])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_every_place_gives_the_same_examples(
    root: Path, made: Path, tmp_path: Path, place: str, packed: bool
) -> None:
    expected = everything(SOURCE.read(root))
    other = tmp_path / "other"
    shutil.copytree(made, other / place)
    if packed:
        zipped(other / place)
    assert SOURCE.find(other) == other / place
    assert all(torch.equal(one, two) for one, two in zip(everything(SOURCE.read(other)), expected, strict=True))
    assert len(prepared(root)) == (2 if packed else 1), "the same files are recognised wherever they lie"


def test_the_second_read_opens_no_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = SOURCE.read(root)
    monkeypatch.setattr(jpegs, "opened", lambda *_: pytest.fail("the images were read again"))
    monkeypatch.setattr(jpegs, "lines", lambda *_: pytest.fail("the lists were read again"))
    again = SOURCE.read(root)
    assert all(torch.equal(one, two) for one, two in zip(everything(first), everything(again), strict=True))
    assert again.owners is not None
    assert again.owners.names == ("12", "300", "2880")


@pytest.mark.parametrize("part", ["identity_CelebA.txt", "list_attr_celeba.txt", "img_align_celeba"])
def test_a_change_of_any_part_is_seen(root: Path, part: str) -> None:
    SOURCE.read(root)
    path = root / "celeba" / part
    if path.is_dir():
        (path / "new.jpg").write_bytes(jpeg(0))
    else:
        path.write_text(path.read_text()[:-20] + "\n")
    with pytest.raises(InputError):
        SOURCE.read(root)


def test_clients_are_persons_and_are_tested_on_their_own_images(root: Path) -> None:
    data = catalogue.federate(DataSettings(name="celeba", split="natural", clients=0), 0)
    assert (data.classes, data.shape, len(data.clients)) == (2, (3, 84, 84), 3)
    assert [data.clients.size(client) for client in range(3)] == [9, 10, 4]
    assert len(data.test) == 4
    two = catalogue.federate(DataSettings(name="celeba", split="natural", clients=2), 0)
    assert len(two.clients) == 2
    assert len(two.test) < 4
    x, _ = data.clients[0].fetch(torch.arange(3))
    assert torch.allclose(data.pipeline(x), x / 127.5 - 1, atol=1e-6)
    with pytest.raises(InputError, match="celeba is not augmented"):
        catalogue.load("celeba", augment=True)


def test_missing_data_are_told_where_they_were_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    assert catalogue.where("celeba") is None
    with pytest.raises(InputError) as refusal:
        catalogue.load("celeba")
    for expected in (
        f"{tmp_path}/celeba\n",
        f"{tmp_path}/celeba/raw\n",
        f"{tmp_path}/leaf/celeba/data/raw\n",
        "img_align_celeba/ (or img_align_celeba.zip), identity_CelebA.txt and list_attr_celeba.txt",
    ):
        assert expected in str(refusal.value)


def test_the_place_with_most_parts_is_taken(root: Path, made: Path) -> None:
    shutil.copytree(made, root / "leaf" / "celeba" / "data" / "raw")
    assert SOURCE.find(root) == root / "celeba"
    (root / "celeba" / "identity_CelebA.txt").unlink()
    assert SOURCE.find(root) == root / "leaf" / "celeba" / "data" / "raw"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("img_align_celeba", r"img_align_celeba.zip is missing \(and so is img_align_celeba/\)"),
        ("identity_CelebA.txt", "identity_CelebA.txt is missing"),
        ("list_attr_celeba.txt", "list_attr_celeba.txt is missing"),
    ],
)
def test_a_part_that_is_missing_is_named(root: Path, part: str, message: str) -> None:
    path = root / "celeba" / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match=f"{root}/celeba/{message}"):
        SOURCE.read(root)


def line(file: str, number: int, change: Callable[[str], str]) -> Callable[[Path], object]:
    """A fault in one line of a file, counted from 1."""

    def apply(folder: Path) -> None:
        lines = (folder / file).read_text().splitlines()
        lines[number - 1] = change(lines[number - 1])
        (folder / file).write_text("\n".join(lines))

    return apply


PERSONS, ATTRS = "identity_CelebA.txt", "list_attr_celeba.txt"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a person that is no number": (
        line(PERSONS, 4, lambda text: f"{text}x"),
        rf"{PERSONS} has not an image and a person's number in line 4: '000004.jpg \d+x'",
    ),
    "a person with a sign": (
        line(PERSONS, 1, lambda text: text.replace(" ", " -")),
        rf"{PERSONS} has not an image and a person's number in line 1",
    ),
    "an image without a person": (
        line(PERSONS, 3, lambda text: text.split()[0]),
        rf"{PERSONS} has not an image and a person's number in line 3: '000003.jpg'",
    ),
    "a line too long": (
        line(PERSONS, 3, lambda text: f"{text} 5"),
        rf"{PERSONS} has not an image and a person's number in line 3",
    ),
    "an image that nobody is on": (
        line(PERSONS, 5, lambda text: ""),
        rf"{PERSONS} has no line for 000005.jpg",
    ),
    "an image of two persons": (
        line(PERSONS, 5, lambda text: "000001.jpg 7"),
        rf"{PERSONS} names 000001.jpg again in line 5",
    ),
    "no persons": (
        lambda folder: (folder / PERSONS).write_text(""),
        rf"{PERSONS} has no line for 000001.jpg",
    ),
    "nobody with five images": (
        lambda folder: (folder / PERSONS).write_text(
            "".join(f"{name_of(number)} {number // 4}\n" for number in range(len(PEOPLE)))
        ),
        rf"{PERSONS} has no person with at least 5 images",
    ),
    "no column Smiling": (
        line(ATTRS, 2, lambda text: text.replace("Smiling", "Smilling")),
        rf"{ATTRS} has no column Smiling",
    ),
    "no number of images": (
        line(ATTRS, 1, lambda text: "images"),
        rf"{ATTRS} does not begin with the number of its images",
    ),
    "an empty list": (
        lambda folder: (folder / ATTRS).write_text(""),
        rf"{ATTRS} does not begin with the number of its images",
    ),
    "a list cut short": (
        lambda folder: (folder / ATTRS).write_text("\n".join((folder / ATTRS).read_text().splitlines()[:10])),
        rf"{ATTRS} has 8 images where its first line says 31",
    ),
    "a value of 0": (
        line(ATTRS, 7, lambda text: text.replace("-1", "0", 1)),
        rf"{ATTRS} has the value 0 in line 7, neither 1 nor -1",
    ),
    "a value too few": (
        line(ATTRS, 8, lambda text: text[:-2]),
        rf"{ATTRS} has 2 values in line 8 where there should be 3",
    ),
    "an image listed twice": (
        line(ATTRS, 8, lambda text: text.replace("000006", "000005")),
        rf"{ATTRS} names 000005.jpg again in line 8",
    ),
    "an image without attributes": (
        line(ATTRS, 8, lambda text: text.replace("000006", "x")),
        rf"{ATTRS} has no line for 000006.jpg",
    ),
    "a list that is no text": (
        lambda folder: (folder / ATTRS).write_bytes(b"\xff\xfe\x00"),
        rf"{ATTRS} is not a text file",
    ),
    "a line without its image": (
        lambda folder: (folder / "img_align_celeba/000002.jpg").unlink(),
        "img_align_celeba/000002.jpg is missing",
    ),
    "an image without a line": (
        lambda folder: (folder / "img_align_celeba/000099.jpg").write_bytes(jpeg(0)),
        f"img_align_celeba/000099.jpg has no line in {ATTRS}",
    ),
    "garbage": (
        lambda folder: (folder / "img_align_celeba/000002.jpg").write_bytes(b"garbage"),
        r"img_align_celeba/000002.jpg cannot be decoded \(not a JPEG file\)",
    ),
    "an image cut short": (
        lambda folder: (folder / "img_align_celeba/000002.jpg").write_bytes(jpeg(2, 178, 218)[:3000]),
        r"img_align_celeba/000002.jpg cannot be decoded \(.*truncated",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused_by_name(root: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    spoil(root / "celeba")
    with pytest.raises(InputError, match=rf"data set 'celeba': {root}/celeba/{message}"):
        SOURCE.read(root)
    assert prepared(root) == []


@pytest.mark.parametrize("side", [9_000, 65_000])
def test_an_image_of_absurd_size_is_refused_unopened(root: Path, side: int) -> None:
    data = jpeg(0)
    at = data.index(b"\xff\xc0") + 5
    path = root / "celeba" / "img_align_celeba" / name_of(4)
    overwrite(path, data[:at] + 2 * side.to_bytes(2, "big") + data[at + 4 :])
    with pytest.raises(InputError, match=f"{path} is .*too large to be part of the data set"):
        SOURCE.read(root)


def test_notes_in_a_file_that_pillow_cannot_read_do_no_harm(root: Path) -> None:
    whole = Image.open(io.BytesIO(jpeg(5, 178, 218)))
    file = io.BytesIO()
    broken = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x1a\x01\x05\0\x01\0\0\0\xff\xff\0\0"
    whole.save(file, "JPEG", exif=broken)
    with pytest.warns(UserWarning, match="EXIF|Truncated"):
        decode.decode(file.getvalue(), 84, resize=True)
    overwrite(root / "celeba" / "img_align_celeba" / name_of(4), file.getvalue())
    assert len(SOURCE.read(root).train) == 23


def test_a_damaged_archive_is_refused(root: Path) -> None:
    zipped(root / "celeba")
    path = root / "celeba" / "img_align_celeba.zip"
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    with pytest.raises(InputError, match=f"{path} cannot be read as a zip file"):
        SOURCE.read(root)
    path.unlink()
    (root / "celeba" / "elsewhere").mkdir()
    pack(root / "celeba" / "elsewhere", root / "celeba", path)
    with pytest.raises(InputError, match=f"{path} lacks img_align_celeba/"):
        SOURCE.read(root)


def test_an_image_overwritten_in_place_is_noticed(root: Path) -> None:
    before = everything(SOURCE.read(root))
    overwrite(root / "celeba" / "img_align_celeba" / name_of(3), jpeg(999, 178, 218))
    after = everything(SOURCE.read(root))
    assert sum(not torch.equal(one, two) for one, two in zip(before[0], after[0], strict=True)) <= 1
    assert not all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


@pytest.mark.parametrize("header", ["image_id identity\n", "31\nimage_id identity\n", "31\r\n"])
def test_a_header_above_the_persons_is_passed_over(root: Path, header: str) -> None:
    expected = everything(SOURCE.read(root))
    path = root / "celeba" / PERSONS
    path.write_bytes((header + path.read_text()).encode())
    found = SOURCE.read(root)
    assert all(torch.equal(one, two) for one, two in zip(everything(found), expected, strict=True))


def test_a_list_whose_lines_were_altered_is_refused_but_line_ends_and_headers_are_not(root: Path) -> None:
    lists = {file: (root / "celeba" / file).read_bytes() for file in (PERSONS, ATTRS)}
    strict = replace(SOURCE, md5={file: md5(data) for file, data in lists.items()})
    strict.read(root)
    for file, data in lists.items():
        (root / "celeba" / file).write_bytes(data.replace(b"\n", b"\r\n"))
    (root / "celeba" / PERSONS).write_bytes(b"image identity\n" + lists[PERSONS])
    strict.read(root)
    (root / "celeba" / ATTRS).write_bytes(lists[ATTRS].replace(b"000002.jpg -1 -1", b"000002.jpg -1  1"))
    with pytest.raises(InputError, match=rf"{root}/celeba has {ATTRS}, which was altered: its md5 is"):
        strict.read(root)
    assert strict.read(root, partial=True).differences


def test_images_in_a_folder_of_the_same_name_twice_are_found(root: Path) -> None:
    expected = everything(SOURCE.read(root))
    folder = root / "celeba" / "img_align_celeba"
    folder.rename(root / "celeba" / "inner")
    folder.mkdir()
    (root / "celeba" / "inner").rename(folder / "img_align_celeba")
    (folder / "img_align_celeba" / "._000001.jpg").write_bytes(b"notes of macOS")
    found = everything(SOURCE.read(root))
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize("top", ["", "CelebA/Img/img_align_celeba/", "img_align_celeba/img_align_celeba/"])
def test_an_archive_may_have_any_folder_on_top(root: Path, top: str) -> None:
    expected = everything(SOURCE.read(root))
    folder = root / "celeba" / "img_align_celeba"
    with zipfile.ZipFile(root / "celeba" / "img_align_celeba.zip", "w") as archive:
        for image in sorted(folder.iterdir()):
            archive.write(image, f"{top}{image.name}")
            archive.writestr(f"__MACOSX/{top}._{image.name}", b"notes")
    shutil.rmtree(folder)
    found = everything(SOURCE.read(root))
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def test_an_incomplete_copy_is_used_only_when_the_user_says_so(root: Path) -> None:
    whole = replace(celeba.CELEBA, md5={})
    with pytest.raises(InputError) as refusal:
        whole.read(root)
    for expected in (
        "has 31 images where there should be 202599",
        "has 27 examples where there should be 200288",
        "has 3 clients where there should be 9343",
        "data.partial = true",
        "mmlab.ie.cuhk.edu.hk",
    ):
        assert expected in str(refusal.value)
    assert "fedacg data get" not in str(refusal.value)
    contents = whole.read(root, partial=True)
    assert len(contents.train) == 23
    assert len(contents.differences) == 3


def test_real_celeba_has_its_published_numbers() -> None:
    if catalogue.where("celeba") is None:
        pytest.skip(f"CelebA is not in {data_root()}: see `fedacg data get celeba`")
    whole = catalogue.load("celeba")
    assert whole.owners is not None
    assert len(whole.owners.names) == 9343
    assert len(whole.train) + len(whole.test) == 200_288
