"""Tiny-ImageNet in its distributor's layout, as a folder or as the zip file, decoded once into mapped arrays.

The test set is the published validation set, since the labels of the published test set are kept secret.
Decoding is in jpegs.py, handling of the arrays in prepared.py.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedacg.data.examples import Contents
from fedacg.data.files import Listing, altered, damaged, file_checksum, is_dir, is_file, progress
from fedacg.data.origins import PUBLISHED, Published, published_md5
from fedacg.data.prepared import StoredExamples, prepare
from fedacg.data.sources import Source, jpegs
from fedacg.data.sources.jpegs import Files, FolderFiles

_ANNOTATIONS = "val/val_annotations.txt"
_LAYOUT = f"train/<wnid>/images/, val/images/, {_ANNOTATIONS} and wnids.txt"
_DIFFERENCES = "differences.json"
_ARCHIVE_MD5 = published_md5("tiny-imagenet-200.zip")
Labelled = list[tuple[str, int]]
"""Names of images and their labels."""


@dataclass(frozen=True)
class TinyImageNetSource(Source):
    """Where Tiny-ImageNet may be, and what must be in it.

    A class is a WordNet id (wnid). Labels count the wnids in their alphabetical order: those that wnids.txt lists,
    else the folders in train/.
    """

    name: str = "tiny-imagenet"
    folder: str = "tiny-imagenet-200"
    archive: str = "tiny-imagenet-200.zip"
    archive_md5: str = _ARCHIVE_MD5
    classes: int = 200
    side: int = 64
    published: Published = PUBLISHED["tiny-imagenet"]
    wanted: str = f"the folder (with {_LAYOUT}) or the archive as it is distributed"
    version: int = 2

    def places(self, root: Path) -> list[Path]:
        return [root / self.folder, root / self.archive]

    def copies(self, root: Path) -> list[Path]:
        """The folder, if it has its parts, the archive, or the folder if it has one of the parts."""
        folder, archive = self.places(root)
        base = self._base(folder)
        parts = (base / "train", base / "val" / "images")
        held = sum(is_dir(self.name, part) for part in parts) + is_file(self.name, base / _ANNOTATIONS)
        archives = [archive] if is_file(self.name, archive) else []
        if held == 3:
            return [folder, *archives]
        return [*archives, folder] if held else archives

    def listing(self, copy: Path) -> Listing:
        if is_file(self.name, copy):
            return Listing(self.name, copy, copy.parent, (copy.name,))
        files = FolderFiles(self.name, self._base(copy))
        folders = ["val/images", *(f"train/{wnid}/images" for wnid in files.folders("train"))]
        images = [f"{folder}/{image}" for folder in folders for image in files.images(folder)]
        lists = filter(files.has, ("wnids.txt", _ANNOTATIONS))
        return Listing(self.name, copy, files.path("."), (*lists, *images))

    def read_copy(self, listing: Listing, *, partial: bool, fresh: bool) -> Contents:
        """The training and the test examples: images (N, 3, 64, 64) in bytes."""
        folder = prepare(self.version, listing, lambda into: self._decode(listing.copy, into), fresh=fresh)
        differences = tuple(json.loads((folder / _DIFFERENCES).read_text()))
        parts = (StoredExamples.open(folder, part) for part in ("train", "test"))
        return Contents(next(parts), next(parts), differences=differences)

    def _base(self, folder: Path) -> Path:
        """The folder itself, or one of the same name in it, as some programs unpack archives."""
        inner = folder / folder.name
        return inner if is_dir(self.name, inner / "train") else folder

    def _top(self, entries: list[str]) -> str:
        """The folder of an archive that the data set lies in."""
        ending = f"/{_ANNOTATIONS}"
        tops = [f"/{entry}".removesuffix(ending).strip("/") for entry in entries if f"/{entry}".endswith(ending)]
        return min(tops, key=len, default=self.folder)

    def _decode(self, copy: Path, into: Path) -> None:
        differences = []
        base = self._base(copy)
        with jpegs.opened(self.name, base, self._top) as files:
            wnids = self._wnids(files)
            if base.is_file() and files.path("") == copy / self.folder:
                # One that was packed again, under another folder, is judged by what is in it.
                found = file_checksum(self.name, copy, self.archive_md5)
                differences += [altered(found, self.archive_md5)] if found != self.archive_md5 else []
            parts = {"train": self._train(files, wnids), "test": self._test(files, wnids)}
            with progress(f"preparing {self.name}, once", sum(map(len, parts.values())), "images") as advance:
                for part, images in parts.items():
                    names = [name for name, _ in images]
                    jpegs.decode_all(files, names, into, f"{part}-x", self.side, advance, resize=False)
                    np.save(into / f"{part}-y.npy", np.array([label for _, label in images], np.int64))
        (into / _DIFFERENCES).write_text(json.dumps(differences))

    def _wnids(self, files: Files) -> dict[str, int]:
        """Every class and its label."""
        train = "train"
        folders = files.folders(train)
        listed = self._listed(files)
        wnids = folders if listed is None else listed
        if len(wnids) != self.classes:
            place = files.path(train if listed is None else "wnids.txt")
            raise damaged(self.name, place, f"has {len(wnids)} classes where there should be {self.classes}")
        for wnid in sorted(set(wnids) ^ set(folders)):
            what = "is missing" if wnid in wnids else "is no class that wnids.txt lists"
            raise damaged(self.name, files.path(f"{train}/{wnid}"), what)
        return {wnid: label for label, wnid in enumerate(sorted(wnids))}

    def _listed(self, files: Files) -> list[str] | None:
        """The wnids of wnids.txt; None where there is no such file."""
        name = "wnids.txt"
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
            folder = f"train/{wnid}/images"
            found = files.images(folder)
            if not found:
                raise damaged(self.name, files.path(folder), "has no images (*.JPEG)")
            images.extend((f"{folder}/{image}", label) for image in found)
        return images

    def _test(self, files: Files, wnids: dict[str, int]) -> Labelled:
        """The validation images in the order of their annotations."""
        name, folder = _ANNOTATIONS, "val/images"
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
