"""LEAF's CelebA: a client is a person, and the question is whether the person smiles.

Made from the files that CelebA's makers distribute, by LEAF's rules, and decoded once into mapped arrays.
Decoding is in jpegs.py, handling of the arrays in prepared.py.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedacg.core.randomness import numpy_generator
from fedacg.data.examples import Contents, Owners
from fedacg.data.files import Listing, altered, checksum, damaged, is_dir, is_file, progress
from fedacg.data.origins import PUBLISHED, Published
from fedacg.data.prepared import StoredExamples, prepare
from fedacg.data.sources import Source, jpegs
from fedacg.data.sources.jpegs import Files, FolderFiles, is_image

_IMAGES = "img_align_celeba"
_ARCHIVE = "img_align_celeba.zip"
_PERSONS = "identity_CelebA.txt"
_ATTRIBUTES = "list_attr_celeba.txt"
_LABEL = "Smiling"
_OWNERS = ("names", "train-offsets", "test-offsets")
_DIFFERENCES = "differences.json"
_LEAST = 5
"""Images that a person must have."""
_TRAIN = 0.9
"""Fraction of a person's images for training, rounded down."""
_HEADER = 2
"""Lines that some copies have above the persons: the number of images, the names of the columns."""
Persons = dict[int, list[str]]
"""The images of each person, in order."""


@dataclass(frozen=True)
class CelebASource(Source):
    """Where CelebA may be, and what is made from it.

    Persons with at least five images are the owners, in the order of their numbers. A random nine tenths of a
    person's images are for training, the others for testing. The cut depends on the person alone, so it is the
    same in every experiment. Images are resized to a square (bicubic, Pillow's default), whatever their shape.
    """

    md5: Mapping[str, str]
    """Checksums of the lists."""
    name: str = "celeba"
    folders: tuple[str, ...] = ("celeba", "celeba/raw", "leaf/celeba/data/raw")
    side: int = 84
    classes: int = 2
    images: int = 202_599
    """Number of images of all persons."""
    published: Published = PUBLISHED["celeba"]
    wanted: str = f"{_IMAGES}/ (or {_ARCHIVE}), {_PERSONS} and {_ATTRIBUTES}"
    version: int = 2

    def places(self, root: Path) -> list[Path]:
        return [root / folder for folder in self.folders]

    def copies(self, root: Path) -> list[Path]:
        """The places that have one of the parts, those with most of them first."""
        held = {place: sum(self._held(place)) for place in self.places(root)}
        return sorted((place for place in held if held[place]), key=lambda place: -held[place])

    def listing(self, copy: Path) -> Listing:
        for part, there in zip((_ARCHIVE, _PERSONS, _ATTRIBUTES), self._held(copy), strict=True):
            if not there:
                other = f" (and so is {_IMAGES}/)" if part == _ARCHIVE else ""
                raise damaged(self.name, copy / part, f"is missing{other}")
        images = self._images(copy)
        if is_file(self.name, images):
            return Listing(self.name, copy, copy, (_ARCHIVE, _PERSONS, _ATTRIBUTES))
        folder = images.relative_to(copy)
        names = FolderFiles(self.name, images).images("")
        return Listing(self.name, copy, copy, (_PERSONS, _ATTRIBUTES, *(f"{folder}/{name}" for name in names)))

    def read_copy(self, listing: Listing, *, partial: bool, fresh: bool) -> Contents:
        """The training and the test examples, person after person: images (N, 3, 84, 84) in bytes."""
        folder = prepare(self.version, listing, lambda into: self._decode(listing.copy, into), fresh=fresh)
        names, train, test = (np.load(folder / f"{array}.npy") for array in _OWNERS)
        owners = Owners(tuple(map(str, names)), torch.from_numpy(train), torch.from_numpy(test))
        differences = tuple(json.loads((folder / _DIFFERENCES).read_text()))
        parts = (StoredExamples.open(folder, part) for part in ("train", "test"))
        return Contents(next(parts), next(parts), owners, differences=differences)

    def _held(self, place: Path) -> tuple[bool, bool, bool]:
        """Whether the images, the persons and the attributes are there."""
        persons, attributes = (is_file(self.name, place / file) for file in (_PERSONS, _ATTRIBUTES))
        images = self._images(place)
        return images.suffix == "" or is_file(self.name, images), persons, attributes

    def _images(self, place: Path) -> Path:
        """The folder of images, which may lie in one of the same name, or else the archive."""
        unpacked = place / _IMAGES
        for folder in (unpacked, unpacked / _IMAGES):
            if is_dir(self.name, folder) and FolderFiles(self.name, folder).has_images():
                return folder
        return place / _ARCHIVE

    def _top(self, entries: list[str]) -> str:
        """The folder of an archive that has the most images."""
        folders = [entry.rpartition("/")[0] for entry in entries if is_image(entry.rpartition("/")[2])]
        return max(dict.fromkeys(folders), key=folders.count, default=_IMAGES)

    def _decode(self, place: Path, into: Path) -> None:
        texts = FolderFiles(self.name, place)
        smiles = self._smiles(texts)
        persons = self._persons(texts, smiles)
        differences = self._altered(texts)
        if len(smiles) != self.images:
            differences.append(f"has {len(smiles)} images where there should be {self.images}")
        with jpegs.opened(self.name, self._images(place), self._top) as files:
            self._compare(files, smiles)
            cuts = [_cut(person, shown) for person, shown in persons.items()]
            np.save(into / "names.npy", np.array(list(persons), np.int64))
            with progress(f"preparing {self.name}, once", sum(map(len, persons.values())), "images") as advance:
                for part, stretches in zip(("train", "test"), zip(*cuts, strict=True), strict=True):
                    chosen = [image for stretch in stretches for image in stretch]
                    jpegs.decode_all(files, chosen, into, f"{part}-x", self.side, advance, resize=True)
                    np.save(into / f"{part}-y.npy", np.array([smiles[image] for image in chosen], np.int64))
                    np.save(into / f"{part}-offsets.npy", np.cumsum([0, *map(len, stretches)], dtype=np.int64))
        (into / _DIFFERENCES).write_text(json.dumps(differences))

    def _altered(self, texts: Files) -> list[str]:
        """The lists whose lines are not the published ones; line ends and a header make no difference."""
        found = []
        for file, published in self.md5.items():
            data = texts.read(file)
            rows = data.replace(b"\r\n", b"\n").splitlines(keepends=True)
            without = (b"".join(rows[header:]) for header in (range(_HEADER + 1) if file == _PERSONS else (0,)))
            if all(checksum(each, published) != published for each in (data, *without)):
                found.append(f"has {file}, which {altered(checksum(data, published), published)}")
        return found

    def _smiles(self, texts: Files) -> dict[str, int]:
        """Every image, and 1 where its person smiles."""
        path = texts.path(_ATTRIBUTES)
        rows = jpegs.lines(texts, _ATTRIBUTES)
        count, attributes = (next(rows, (0, [""]))[1] for _ in range(2))
        if len(count) != 1 or not count[0].isdecimal():
            raise damaged(self.name, path, "does not begin with the number of its images")
        if _LABEL not in attributes:
            raise damaged(self.name, path, f"has no column {_LABEL}")
        column = 1 + attributes.index(_LABEL)
        smiles: dict[str, int] = {}
        for number, words in rows:
            if len(words) != 1 + len(attributes):
                what = f"has {len(words) - 1} values in line {number} where there should be {len(attributes)}"
                raise damaged(self.name, path, what)
            if not set(words[1:]) <= {"1", "-1"}:
                wrong = next(word for word in words[1:] if word not in ("1", "-1"))
                raise damaged(self.name, path, f"has the value {wrong} in line {number}, neither 1 nor -1")
            if words[0] in smiles:
                raise damaged(self.name, path, f"names {words[0]} again in line {number}")
            smiles[words[0]] = int(words[column] == "1")
        if len(smiles) != int(count[0]):
            raise damaged(self.name, path, f"has {len(smiles)} images where its first line says {count[0]}")
        return smiles

    def _persons(self, texts: Files, smiles: dict[str, int]) -> Persons:
        """The persons with enough images, in the order of their numbers."""
        path = texts.path(_PERSONS)
        person_of: dict[str, int] = {}
        for number, words in jpegs.lines(texts, _PERSONS):
            if number <= _HEADER and not is_image(words[0]):
                continue
            if len(words) != 2 or not words[1].isdecimal():
                what = f"has not an image and a person's number in line {number}: {' '.join(words)[:60]!r}"
                raise damaged(self.name, path, what)
            if words[0] in person_of:
                raise damaged(self.name, path, f"names {words[0]} again in line {number}")
            person_of[words[0]] = int(words[1])
        for image in sorted(person_of.keys() ^ smiles.keys()):
            lacking = _ATTRIBUTES if image in person_of else _PERSONS
            raise damaged(self.name, texts.path(lacking), f"has no line for {image}")
        persons: Persons = {}
        for image in sorted(person_of):
            persons.setdefault(person_of[image], []).append(image)
        enough = {person: persons[person] for person in sorted(persons) if len(persons[person]) >= _LEAST}
        if not enough:
            raise damaged(self.name, path, f"has no person with at least {_LEAST} images")
        return enough

    def _compare(self, files: Files, smiles: dict[str, int]) -> None:
        """Refuse images without a line, and lines without an image."""
        for image in sorted(smiles.keys() ^ set(files.images(""))):
            what = "is missing" if image in smiles else f"has no line in {_ATTRIBUTES}"
            raise damaged(self.name, files.path(image), what)


def _cut(person: int, images: list[str]) -> tuple[list[str], list[str]]:
    """A person's images for training and for testing, both in order."""
    order = numpy_generator(0, "celeba test", person).permutation(len(images))
    train = int(_TRAIN * len(images))
    return [images[i] for i in sorted(order[:train])], [images[i] for i in sorted(order[train:])]


CELEBA = CelebASource(
    md5={_PERSONS: "32bd1bd63d3c78cd57e08160ec5ed1e2", _ATTRIBUTES: "75e246fa4810816ffd6ee81facbd244c"}
)
