"""LEAF's CelebA: a client is a person, and the question is whether the person smiles.

Made from the files that CelebA's makers distribute, by LEAF's rules, and decoded once into mapped arrays.
Decoding lives in jpegs.py, what becomes of the arrays in prepared.py.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedacg.core.randomness import numpy_generator
from fedacg.data.examples import Contents, Owners
from fedacg.data.files import damaged, missing
from fedacg.data.prepared import StoredExamples, array_file, prepare
from fedacg.data.sources import jpegs
from fedacg.data.sources.jpegs import Files, FolderFiles

_VERSION = 1
_IMAGES = "img_align_celeba"
_ARCHIVE = "img_align_celeba.zip"
_PERSONS = "identity_CelebA.txt"
_ATTRIBUTES = "list_attr_celeba.txt"
_LABEL = "Smiling"
_OWNERS = ("names", "train-offsets", "test-offsets")
_LEAST = 5
"""Images that a person must have."""
_TRAIN = 0.9
"""How much of a person's images is for training, rounded down."""
Persons = dict[int, list[str]]
"""The images of each person, in order."""


@dataclass(frozen=True)
class CelebASource:
    """Where CelebA may lie, and what is made of it.

    Persons with at least five images are the owners, in the order of their numbers. A random nine tenths of a
    person's images are for training, the others for testing. The cut depends on the person alone, so it is the
    same in every experiment. Images are resized to a square (bicubic, Pillow's default), whatever their shape.
    """

    name: str = "celeba"
    places: tuple[str, ...] = ("celeba", "celeba/raw", "leaf/celeba/data/raw")
    side: int = 84

    def find(self, root: Path) -> Path | None:
        """The first of the places that has most of the parts."""
        places = [place for folder in self.places if (place := root / folder).is_dir()]
        return max(places, key=lambda place: sum(part.exists() for part in _parts(place)), default=None)

    def read(self, root: Path) -> Contents:
        """The training and the test examples, person after person: images (N, 3, 84, 84) in bytes."""
        place = self.find(root)
        if place is None:
            wanted = f"{_IMAGES}/ (or {_ARCHIVE}), {_PERSONS} and {_ATTRIBUTES}"
            raise missing(self.name, [root / folder for folder in self.places], wanted)
        parts = _parts(place)
        for part in parts:
            if not part.exists():
                other = f" (and so is {_IMAGES}/)" if part.name == _ARCHIVE else ""
                raise damaged(self.name, part, f"is missing{other}")
        prepared = prepare(self.name, _VERSION, parts, lambda into: self._decode(place, into))
        names, train, test = (np.load(prepared / f"{array}.npy") for array in _OWNERS)
        owners = Owners(tuple(map(str, names)), torch.from_numpy(train), torch.from_numpy(test))
        return Contents(StoredExamples.open(prepared, "train"), StoredExamples.open(prepared, "test"), owners)

    def _decode(self, place: Path, into: Path) -> None:
        texts = FolderFiles(self.name, place)
        smiles = self._smiles(texts)
        persons = self._persons(texts, smiles)
        images = _parts(place)[0]
        with jpegs.opened(self.name, place if images.is_dir() else images) as files:
            self._compare(files, smiles)
            cuts = [_cut(person, shown) for person, shown in persons.items()]
            np.save(into / "names.npy", np.array(list(persons), np.int64))
            with jpegs.progress(self.name, sum(map(len, persons.values()))) as advance:
                for part, stretches in zip(("train", "test"), zip(*cuts, strict=True), strict=True):
                    chosen = [image for stretch in stretches for image in stretch]
                    x = array_file(into, f"{part}-x", (len(chosen), 3, self.side, self.side))
                    jpegs.decode_all(files, [f"{_IMAGES}/{image}" for image in chosen], x, advance, resize=True)
                    np.save(into / f"{part}-y.npy", np.array([smiles[image] for image in chosen], np.int64))
                    np.save(into / f"{part}-offsets.npy", np.cumsum([0, *map(len, stretches)], dtype=np.int64))

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
        for image in sorted(smiles.keys() ^ set(files.images(_IMAGES))):
            what = "is missing" if image in smiles else f"has no line in {_ATTRIBUTES}"
            raise damaged(self.name, files.path(f"{_IMAGES}/{image}"), what)


def _parts(place: Path) -> tuple[Path, Path, Path]:
    """The images, unpacked or as an archive, and the two lists."""
    unpacked = place / _IMAGES
    return unpacked if unpacked.is_dir() else place / _ARCHIVE, place / _PERSONS, place / _ATTRIBUTES


def _cut(person: int, images: list[str]) -> tuple[list[str], list[str]]:
    """A person's images for training and for testing, both in order."""
    order = numpy_generator(0, "celeba test", person).permutation(len(images))
    train = int(_TRAIN * len(images))
    return [images[i] for i in sorted(order[:train])], [images[i] for i in sorted(order[train:])]


CELEBA = CelebASource()
