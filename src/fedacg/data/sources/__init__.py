"""The published data sets, a file for each. Here is what their readers share: choosing the copy, or the error.

A copy is a folder, an archive or a file that holds a data set. A damaged or incomplete one is skipped if there is
a better one.
"""

import sys
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

from fedacg.data import files, origins, prepared
from fedacg.data.examples import Contents, Origin
from fedacg.data.files import Listing, damaged, missing
from fedacg.data.origins import Published
from fedacg.errors import DataDamaged


class Source(ABC):
    """The files of a data set: where they may be, and how they are read."""

    name: str
    classes: int
    published: Published
    wanted: str
    """What to put in one of the places, in errors."""
    version: int | None = None
    """Version of the preparation, if reading is slow and done once (prepared.py)."""

    @abstractmethod
    def places(self, root: Path) -> list[Path]:
        """All places that are searched below the data root."""

    @abstractmethod
    def copies(self, root: Path) -> list[Path]:
        """The places that hold at least a part of it, the most complete first."""

    @abstractmethod
    def listing(self, copy: Path) -> Listing:
        """The files of a copy that are read."""

    @abstractmethod
    def read_copy(self, listing: Listing, *, partial: bool, fresh: bool) -> Contents:
        """What a copy holds, with how it differs from the published one where its counts do not show it.

        Damage is refused; a smaller copy than the published one is refused unless `partial`, or reported as a
        difference. `fresh` reads the files even if they were prepared before.
        """

    def find(self, root: Path) -> Path | None:
        """The copy that is tried first; None if there is none."""
        return next(iter(self.copies(root)), None)

    def read(self, root: Path, *, partial: bool = False, fresh: bool = False) -> Contents:
        """The first copy that is complete; with `partial`, the first that can be read."""
        copies = self.copies(root)
        if not copies:
            raise missing(self.name, self.places(root), self.wanted)
        if len(copies) > 1 and not partial:  # complete copies are all the same: take one that is already prepared
            copies.sort(key=lambda copy: not self._is_prepared(copy))
        refusals: list[str] = []
        for copy in copies:
            try:
                contents = self._checked(copy, partial=partial, fresh=fresh)
            except DataDamaged as refusal:
                refusals.append(str(refusal))
                continue
            for passed in refusals:
                print(f"note: {passed}; skipped in favour of {copy}", file=sys.stderr, flush=True)
            return contents
        separate = "\n" if len(refusals) > 1 else "; "
        raise DataDamaged("\n".join(refusals) + separate + f"replace it{origins.or_get(self.name)}")

    def _is_prepared(self, copy: Path) -> bool:
        """Whether the work of reading a copy was done before."""
        try:
            return self.version is not None and prepared.find(self.version, self.listing(copy)) is not None
        except DataDamaged:
            return False

    def _checked(self, copy: Path, *, partial: bool, fresh: bool) -> Contents:
        listing = self.listing(copy)
        contents = self.read_copy(listing, partial=partial, fresh=fresh)
        differences = (*contents.differences, *self.published.differences(contents, self.classes))
        if differences and not partial:
            what = f"{'; '.join(differences)} (data.partial = true uses it as it is)"
            raise damaged(self.name, copy, what)
        contents = replace(contents, copy=copy, differences=differences)
        files.remember(listing, Origin.of(contents))
        return contents
