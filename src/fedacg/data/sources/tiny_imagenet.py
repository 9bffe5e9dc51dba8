"""Tiny-ImageNet in its distributor's layout, as a folder or as the zip file, decoded once into mapped arrays.

The test set is the published validation set, since the labels of the published test set are kept secret.
Decoding lives in jpegs.py, what becomes of the arrays in prepared.py.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedacg.data.examples import Contents
from fedacg.data.files import damaged, missing
from fedacg.data.prepared import StoredExamples, array_file, prepare
from fedacg.data.sources import jpegs
from fedacg.data.sources.jpegs import Files, FolderFiles

_VERSION = 1
_ANNOTATIONS = "val/val_annotations.txt"
_LAYOUT = f"train/<wnid>/images/, val/images/, {_ANNOTATIONS} and wnids.txt"
Labelled = list[tuple[str, int]]
"""Names of images and their labels."""


@dataclass(frozen=True)
class TinyImageNetSource:
    """Where Tiny-ImageNet may lie, and what must be in it.

    A class is a WordNet id (wnid). Labels count the wnids in their alphabetical order: those that wnids.txt lists,
    else the folders in train/. How many images a class has is left open, but it must have one.
    """

    name: str = "tiny-imagenet"
    folder: str = "tiny-imagenet-200"
    archive: str = "tiny-imagenet-200.zip"
    classes: int = 200
    side: int = 64

    def find(self, root: Path) -> Path | None:
        """The folder, if it has its parts; else the archive; else the folder that is there at all."""
        folder, archive = root / self.folder, root / self.archive
        parts = (folder / "train", folder / "val" / "images", folder / _ANNOTATIONS)
        if archive.is_file() and not all(part.exists() for part in parts):
            return archive
        return folder if folder.is_dir() else None

    def read(self, root: Path) -> Contents:
        """The training and the test examples: images (N, 3, 64, 64) in bytes."""
        where = self.find(root)
        if where is None:
            places = (root / self.folder, root / self.archive)
            raise missing(self.name, places, f"the folder (with {_LAYOUT}) or the archive as it is distributed")
        prepared = prepare(self.name, _VERSION, self._sources(where), lambda into: self._decode(where, into))
        return Contents(StoredExamples.open(prepared, "train"), StoredExamples.open(prepared, "test"))

    def _sources(self, where: Path) -> list[Path]:
        """What tells that the files changed: not each image, which would take long, but each folder of images."""
        if where.is_file():
            return [where]
        classes = FolderFiles(self.name, where).folders("train")
        parts = ["wnids.txt", _ANNOTATIONS, "val/images", *(f"train/{wnid}/images" for wnid in classes)]
        return [where / part for part in parts if (where / part).exists()]

    def _decode(self, where: Path, into: Path) -> None:
        base = where.parent if where.is_dir() else where  # in both, names begin with the folder's
        with jpegs.opened(self.name, base) as files:
            wnids = self._wnids(files)
            parts = {"train": self._train(files, wnids), "test": self._test(files, wnids)}
            with jpegs.progress(self.name, sum(map(len, parts.values()))) as advance:
                for part, images in parts.items():
                    x = array_file(into, f"{part}-x", (len(images), 3, self.side, self.side))
                    jpegs.decode_all(files, [name for name, _ in images], x, advance, resize=False)
                    np.save(into / f"{part}-y.npy", np.array([label for _, label in images], np.int64))

    def _wnids(self, files: Files) -> dict[str, int]:
        """Every class and its label."""
        train = f"{self.folder}/train"
        folders = files.folders(train)
        listed = self._listed(files)
        wnids = folders if listed is None else listed
        if len(wnids) != self.classes:
            place = files.path(train if listed is None else f"{self.folder}/wnids.txt")
            raise damaged(self.name, place, f"has {len(wnids)} classes where there should be {self.classes}")
        for wnid in sorted(set(wnids) ^ set(folders)):
            what = "is missing" if wnid in wnids else "is no class that wnids.txt lists"
            raise damaged(self.name, files.path(f"{train}/{wnid}"), what)
        return {wnid: label for label, wnid in enumerate(sorted(wnids))}

    def _listed(self, files: Files) -> list[str] | None:
        """The wnids of wnids.txt; None where there is no such file."""
        name = f"{self.folder}/wnids.txt"
        if not files.has(name):
            return None
        listed = [words[0] for _, words in jpegs.lines(files, name)]
        if len(set(listed)) < len(listed):
            twice = next(wnid for wnid in listed if listed.count(wnid) > 1)
            raise damaged(self.name, files.path(name), f"lists {twice} twice")
        return listed

    def _train(self, files: Files, wnids: dict[str, int]) -> Labelled:
        images: Labelled = []
        for wnid, label in wnids.items():
            folder = f"{self.folder}/train/{wnid}/images"
            found = files.images(folder)
            if not found:
                raise damaged(self.name, files.path(folder), "has no images (*.JPEG)")
            images.extend((f"{folder}/{image}", label) for image in found)
        return images

    def _test(self, files: Files, wnids: dict[str, int]) -> Labelled:
        """The validation images in the order of their annotations."""
        name, folder = f"{self.folder}/{_ANNOTATIONS}", f"{self.folder}/val/images"
        there = set(files.images(folder))
        labels: dict[str, int] = {}
        for number, words in jpegs.lines(files, name):
            if len(words) < 2:
                raise damaged(self.name, files.path(name), f"has no image and wnid in line {number}")
            image, wnid = words[:2]
            if wnid not in wnids:
                raise damaged(self.name, files.path(name), f"has the unknown wnid {wnid} in line {number}")
            if image in labels:
                raise damaged(self.name, files.path(name), f"names {image} again in line {number}")
            if image not in there:
                place = files.path(f"{folder}/{image}")
                raise damaged(self.name, place, f"is missing, though line {number} of {_ANNOTATIONS} names it")
            labels[image] = wnids[wnid]
        for image in sorted(there - labels.keys()):
            raise damaged(self.name, files.path(f"{folder}/{image}"), f"has no line in {_ANNOTATIONS}")
        if not labels:
            raise damaged(self.name, files.path(name), "names no images")
        return [(f"{folder}/{image}", label) for image, label in labels.items()]


TINY_IMAGENET = TinyImageNetSource()
