"""Prepared data that are no longer needed: their source files are gone or have changed, or they are incomplete."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedacg.data.files import data_root, homes
from fedacg.data.prepared import Manifest, find, lock, prepared_folders
from fedacg.data.sources.base import Source
from fedacg.errors import InputError


@dataclass(frozen=True)
class Outdated:
    """A folder of prepared data that can be removed."""

    path: Path
    size: int
    """In bytes, as files on disk."""
    why: str


def outdated(sources: Iterable[Source]) -> list[Outdated]:
    """Every preparation of these data sets that no copy of them needs."""
    found: list[Outdated] = []
    for source in sources:
        needed = {folder for copy in _copies(source) if (folder := _prepared(source, copy))}
        for folder in prepared_folders(source.name):
            if folder not in needed:
                found.append(Outdated(folder, _size(folder), _why(folder)))
        for home in homes():
            with lock(home, source.name, wait=False) as alone:
                if alone:  # else another process is working on it right now
                    drafts = sorted(home.glob(f".{source.name}-*"))
                    found += [Outdated(draft, _size(draft), "left by a load that was killed") for draft in drafts]
    return found


def remove(folders: Iterable[Outdated]) -> None:
    """Remove them."""
    for each in folders:
        try:
            shutil.rmtree(each.path)
        except OSError as error:
            raise InputError(f"{each.path}: cannot be removed: {error.strerror}") from None


def _copies(source: Source) -> list[Path]:
    """The copies in the data root, and others that something was prepared from."""
    try:
        copies = source.copies(data_root())
    except InputError:
        copies = []
    manifests = (Manifest.read(folder) for folder in prepared_folders(source.name))
    return list(dict.fromkeys([*copies, *(Path(manifest.copy) for manifest in manifests if manifest)]))


def _prepared(source: Source, copy: Path) -> Path | None:
    """What was prepared from a copy as it is now: from these files, or from others with the same contents."""
    try:
        listing = source.listing(copy)
        if source.version is None or not listing.names:
            return None
        return find(source.version, listing, by_contents=True)
    except InputError:
        return None


def _why(folder: Path) -> str:
    manifest = Manifest.read(folder)
    if manifest is None:
        return "incomplete, or from an earlier version"
    return f"made from {manifest.copy}, which is gone or has changed"


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
