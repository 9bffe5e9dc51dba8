"""FEMNIST as LEAF writes it: images by writer in JSON files, a folder of them to train on and one to test on.

A client is a writer, with as many images as LEAF gave it. Files are read one by one, writer by writer, and become
arrays of bytes in files (prepared.py). LEAF must have cut by sample: then the same writers are in both folders.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedacg.data.examples import Contents, Owners
from fedacg.data.files import Listing, damaged, entries, is_dir, progress, unreadable
from fedacg.data.origins import PUBLISHED, Published
from fedacg.data.prepared import StoredExamples, array_file, prepare
from fedacg.data.sources import Source
from fedacg.errors import InputError

PIXELS = 28 * 28
CLASSES = 62
_NAME = "femnist"
_PARTS = ("train", "test")
_DIFFERENCES = "differences.json"
_NUMBER = re.compile(r"all_data_(\d+)_")
"""In the names that LEAF gives its files, which it counts from 0 in both folders."""
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class FemnistSource(Source):
    """Where LEAF's folders `train` and `test` may be."""

    name: str = _NAME
    classes: int = CLASSES
    folders: tuple[str, ...] = ("leaf/femnist/data", "femnist/data", "femnist")
    published: Published = PUBLISHED["femnist"]
    wanted: str = "LEAF's folders train and test, with their .json files,"
    version: int = 2

    def places(self, root: Path) -> list[Path]:
        return [root / folder / part / "*.json" for folder in self.folders for part in _PARTS]

    def copies(self, root: Path) -> list[Path]:
        """The folders with JSON files in both parts, then those with some in one."""
        folders = [root / folder for folder in self.folders]
        held = {folder: sum(bool(_files(folder / part)) for part in _PARTS) for folder in folders}
        return sorted((folder for folder in folders if held[folder]), key=lambda folder: -held[folder])

    def listing(self, copy: Path) -> Listing:
        paths = [path for part in _PARTS for path in _files(copy / part)]
        return Listing(_NAME, copy, copy, tuple(f"{path.parent.name}/{path.name}" for path in paths))

    def read_copy(self, listing: Listing, *, partial: bool, fresh: bool) -> Contents:
        """Images (N, 1, 28, 28) in bytes, writer after writer in the order of their names."""
        copy = listing.copy
        files = {part: _files(copy / part) for part in _PARTS}
        for part, found in files.items():
            if not found:
                raise damaged(_NAME, copy / part, "has no .json files")
        at = prepare(self.version, listing, lambda folder: _make(files, folder), fresh=fresh)
        names = tuple(np.load(at / "names.npy").tolist())
        train, test = (torch.from_numpy(np.load(at / f"{part}-offsets.npy")) for part in _PARTS)
        differences = tuple(json.loads((at / _DIFFERENCES).read_text()))
        parts = (StoredExamples.open(at, part) for part in _PARTS)
        return Contents(next(parts), next(parts), Owners(names, train, test), differences=differences)


FEMNIST = FemnistSource()


def _files(folder: Path) -> list[Path]:
    if not is_dir(_NAME, folder):
        return []
    return [folder / entry.name for entry in entries(_NAME, folder) if entry.name.endswith(".json")]


def _gaps(files: dict[str, list[Path]]) -> list[str]:
    """Files that are not there, by the numbers that LEAF gives them; other names say nothing."""
    numbers = {
        part: {int(found[1]) for path in paths if (found := _NUMBER.match(path.name))}
        for part, paths in files.items()
    }
    last = max((number for found in numbers.values() for number in found), default=-1)
    return [
        f"lacks {part}/all_data_{number}_….json"
        for part in _PARTS
        for number in range(last + 1)
        if numbers[part] and number not in numbers[part]
    ]


@dataclass(frozen=True)
class _Writer:
    """What one folder holds of a writer."""

    file: Path
    first: int
    """How many images were read before."""
    labels: Bytes


def _make(files: dict[str, list[Path]], folder: Path) -> None:
    megabytes = {path: path.stat().st_size >> 20 for paths in files.values() for path in paths}
    with progress(f"preparing {_NAME}, once", sum(megabytes.values()), "MB") as advance:
        gathered = {
            part: _gather(files[part], folder / f"{part}.raw", lambda path: advance(megabytes[path]))
            for part in _PARTS
        }
    parts = {part: writers for part, (writers, _) in gathered.items()}
    names = sorted(parts["train"])
    for name, writer in parts["test"].items():
        if name not in parts["train"]:
            what = f"has writer {name!r}, who is not in train: preprocess.sh must be run with -t sample"
            raise damaged(_NAME, writer.file, what)
    for part, writers in parts.items():
        _store(folder, part, names, writers)
    np.save(folder / "names.npy", np.array(names))
    differences = _gaps(files)
    if untested := [name for name in names if name not in gathered["test"][1]]:
        differences.append(f"has {len(untested)} writers who are not in test, such as {untested[0]!r}")
    (folder / _DIFFERENCES).write_text(json.dumps(differences))


def _gather(paths: list[Path], raw: Path, read: Callable[[Path], None]) -> tuple[dict[str, _Writer], set[str]]:
    """Append the images of a part to one file, in the order in which they come; who has some, and who is named."""
    writers: dict[str, _Writer] = {}
    named: set[str] = set()
    images = 0
    with raw.open("wb") as out:
        for path in paths:
            for name, x, y in _read(path):
                named.add(name)
                if not len(y):
                    continue
                if name in writers:
                    # LEAF puts a writer in one file. The files of an older run, if joined, would bring images
                    # twice, and test images into the training set.
                    other = writers[name].file
                    what = f"has writer {name!r}, who is in {other} too: keep the files of one run of LEAF"
                    raise damaged(_NAME, path, what)
                writers[name] = _Writer(path, images, y)
                images += len(y)
                out.write(x.tobytes())
            read(path)
    if not writers:
        raise damaged(_NAME, paths[0].parent, "has no images")
    return writers, named


def _store(folder: Path, part: str, names: list[str], writers: dict[str, _Writer]) -> None:
    """Put the images in the order of the names; a writer may have none to test on."""
    offsets = np.cumsum([0] + [len(writers[name].labels) if name in writers else 0 for name in names])
    x = array_file(folder, f"{part}-x", (int(offsets[-1]), 1, 28, 28))
    y = array_file(folder, f"{part}-y", (int(offsets[-1]),))
    raw = folder / f"{part}.raw"
    with raw.open("rb") as file:
        for name, first, last in zip(names, offsets[:-1], offsets[1:], strict=True):
            if first < last:
                file.seek(writers[name].first * PIXELS)
                x[first:last].reshape(-1)[:] = np.fromfile(file, np.uint8, (last - first) * PIXELS)
                y[first:last] = writers[name].labels
    raw.unlink()
    np.save(folder / f"{part}-offsets.npy", offsets)


def _read(path: Path) -> Iterator[tuple[str, Bytes, Bytes]]:
    """The writers of a file: name, images one a row, labels; some have none."""
    users: Any = None
    sizes: Any = None
    found: dict[str, int] = {}
    try:
        json_text = _Cursor(path.read_text("utf-8"))
        for key in json_text.members():
            if key == "user_data":
                for name in json_text.members():
                    x, y = _images(path, name, json_text.value())
                    found[name] = len(y)
                    yield name, x, y
            elif key == "users":
                users = json_text.value()
            elif key == "num_samples":
                sizes = json_text.value()
            else:
                json_text.value()
        json_text.end()
    except OSError as error:
        raise unreadable(_NAME, path, error) from None
    except UnicodeDecodeError as error:
        raise damaged(_NAME, path, f"is not text ({error.reason} at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise damaged(
            _NAME, path, f"cannot be read as LEAF's JSON: {error.msg} at character {error.pos} of {len(error.doc)}"
        ) from None
    _agree(path, users, sizes, found)


def _agree(path: Path, users: Any, sizes: Any, found: dict[str, int]) -> None:
    """Refuse a file whose list of writers and whose data differ."""
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise damaged(_NAME, path, 'is not LEAF\'s JSON: it has no list of names under "users"')
    for user in users:
        if user not in found:
            raise damaged(_NAME, path, f'lists writer {user!r}, who is not in "user_data"')
    listed = set(users)
    for name, count in found.items():
        # A writer whom LEAF left out for lack of images stays in its "user_data" with none.
        if count and name not in listed:
            raise damaged(_NAME, path, f'has images of writer {name!r}, who is not listed under "users"')
    if sizes is not None and sizes != [found[user] for user in users]:
        raise damaged(_NAME, path, 'has other numbers of images than "num_samples" says')
    if path.parent.name == "train" and (idle := [user for user in users if not found[user]]):
        raise damaged(_NAME, path, f"has no images of writer {idle[0]!r}")


def _images(path: Path, name: str, data: Any) -> tuple[Bytes, Bytes]:
    def refuse(what: str) -> InputError:
        return damaged(_NAME, path, f"{what} (writer {name!r})")

    x, y = (data.get(key) for key in ("x", "y")) if isinstance(data, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list):
        raise refuse('has not a list of images under "x" and one of labels under "y"')
    if len(x) != len(y):
        raise refuse(f"has {len(x)} images and {len(y)} labels")
    for position, image in enumerate(x):
        if not isinstance(image, list) or len(image) != PIXELS:
            values = f"{len(image)} values" if isinstance(image, list) else repr(image)
            raise refuse(f"has {values} as image {position} where there should be a list of {PIXELS}")
    if not x:
        return np.empty((0, PIXELS), np.uint8), np.empty(0, np.uint8)
    pixels, labels = _numbers(x), _numbers(y)
    if pixels is None or pixels.ndim != 2:
        raise refuse("has pixels that are not numbers")
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # written this way, it refuses NaN as well
        raise refuse(f"has pixels from {pixels.min():g} to {pixels.max():g}, beyond 0 to 1")
    if labels is None or labels.ndim != 1 or labels.dtype.kind != "i":
        raise refuse("has labels that are not whole numbers")
    if not 0 <= labels.min() <= labels.max() < CLASSES:
        raise refuse(f"has labels from {labels.min()} to {labels.max()}, beyond 0 to {CLASSES - 1}")
    return np.rint(pixels * 255).astype(np.uint8), labels.astype(np.uint8)


def _numbers(values: list[Any]) -> NDArray[Any] | None:
    """Lists of numbers as an array; None for what is something else, or ragged."""
    try:
        array = np.array(values)
    except ValueError:
        return None
    return array if array.dtype.kind in "if" else None


class _Floats(dict[str, float]):
    """Numbers by their text. Pixels have 256 values, and parsing each one again takes three times as long."""

    def __missing__(self, text: str) -> float:
        if len(self) >= 4096:
            self.clear()
        value = self[text] = float(text)
        return value


class _Cursor:
    """A position in JSON text. Objects are read member by member, so that only one is held as Python values."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._decoder = json.JSONDecoder(parse_float=_Floats().__getitem__)

    def value(self) -> Any:
        """The whole value that comes next."""
        self._skip()
        value, self._at = self._decoder.raw_decode(self._text, self._at)
        return value

    def members(self) -> Iterator[str]:
        """The keys of the object that comes next; the value must be read before the next key is asked for."""
        self._expect("{")
        if self._next() == "}":
            self._expect("}")
            return
        while True:
            if self._next() != '"':
                raise self._wrong("a name in quotes")
            key: str = self.value()
            self._expect(":")
            yield key
            if self._next() == "}":
                break
            self._expect(",")
        self._expect("}")

    def end(self) -> None:
        if self._next():
            raise self._wrong("the end")

    def _expect(self, character: str) -> None:
        if self._next() != character:
            raise self._wrong(repr(character))
        self._at += 1

    def _next(self) -> str:
        self._skip()
        return self._text[self._at : self._at + 1]

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1] in (" ", "\n", "\r", "\t"):
            self._at += 1

    def _wrong(self, wanted: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(f"Expecting {wanted}", self._text, self._at)
