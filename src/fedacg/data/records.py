"""What was found when a data set was last read, kept so that a list of data sets can tell it at once.

A record counts only for the very files it was made from; for others it is as if there were none.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import NamedTemporaryFile

from fedacg.data.examples import Origin
from fedacg.data.files import homes, writable_home
from fedacg.data.listing import Listing
from fedacg.errors import InputError


def remember(listing: Listing, origin: Origin) -> None:
    """Keep what was read; where nothing can be written, it is forgotten."""
    if recall(listing) == origin:
        return
    try:
        path = _path(writable_home(), listing)
        with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            json.dump({"stamp": listing.first_stamp, **asdict(origin)}, file)
        Path(file.name).replace(path)
    except (OSError, InputError):
        pass  # nothing depends on it


def recall(listing: Listing) -> Origin | None:
    """What was read from these files; None where they were not read, or have changed since."""
    for home in homes():
        try:
            tree = json.loads(_path(home, listing).read_text())
            if tree.pop("stamp") == listing.first_stamp:
                origin = Origin(**tree)
                return replace(origin, differences=tuple(origin.differences))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return None


def _path(home: Path, listing: Listing) -> Path:
    return home / f"{listing.dataset}.counts.json"
