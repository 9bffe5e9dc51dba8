"""Shakespeare's plays by speaking role: 80 characters in, the next one out.

The words of all roles are in one array of symbol codes, one byte per character. An example is a
window on it, cut out when it is fetched. Of each role the first nine tenths are for training; test windows start
after the last training window has ended, so that they share no character. (LEAF cuts in the same way but for one
character: its first test input is the last training target.) Roles and windows before the cut are LEAF's. The
roles are taken out of the complete works, Project Gutenberg's text 100 of 1994.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacg.data.examples import Contents, Owners
from fedacg.data.files import Listing, damaged, is_file, read_bytes
from fedacg.data.origins import PUBLISHED, Published
from fedacg.data.prepared import MappedArray, prepare
from fedacg.data.sources import Source

_AUTHOR = "by William Shakespeare"
"""The line below the title of each work."""
_POEMS = ("THE SONNETS", "A LOVER'S COMPLAINT")
_INDENT = 2
"""Of a speaker's name; speech that goes on below it has twice as much."""
_UNINDENTED = "THE COMEDY OF ERRORS"
"""The one play whose lines lost their indents; all of them count as speech."""
_SPEAKER = re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)")
_FEWEST_LINES = 3


def roles(text: str) -> dict[str, str]:
    """What each role says, by LEAF's name for it (PLAY_ROLE in capitals), in the order of first words.

    Lines are joined by spaces, and spaces in a row become one. Roles of one or two lines are left out.
    """
    lines: dict[str, list[str]] = {}
    title = above = ""
    speech: list[str] | None = None
    for line in text.splitlines():
        if line.strip() == _AUTHOR:
            title, speech = above, None
        elif title and title not in _POEMS:
            speech = _listen(line, title, lines, speech)
        above = line.strip() or above
    return {name: _together(said) for name, said in lines.items() if len(said) >= _FEWEST_LINES}


def _listen(line: str, title: str, lines: dict[str, list[str]], speech: list[str] | None) -> list[str] | None:
    """Add a line to whom it belongs: a new speaker, or the one of `speech`. The speech that goes on after it."""
    indent = 0 if title == _UNINDENTED else _INDENT
    named = _SPEAKER.match(line, indent) if line.startswith(" " * indent) else None
    if title == _UNINDENTED and line.startswith(("ACT ", "<")):  # a heading, and a notice of the publisher
        return None
    if named:
        name = re.sub(r"\W+", "_", f"{title} {named[1].upper()}")
        speech = lines.setdefault(name, [])
        speech.append(named[2])
    elif speech is not None and line.startswith(" " * 2 * indent):
        speech.append(line[2 * indent :])
    return speech


def _together(said: list[str]) -> str:
    # A space after the last line too, as after every other: LEAF's windows end with it.
    return re.sub("  +", " ", " ".join([*said, ""]))


ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's symbols; the code of a character is its place here.

One that is not among them gets the last code, which is what LEAF's own look-up comes to: it answers -1.
"""
WINDOW = 80
_NAME = "shakespeare"


@dataclass(frozen=True)
class WindowExamples:
    """Windows of 80 symbols with the symbol that follows, cut from stretches of one text.

    Window i belongs to the stretch k with offsets[k] <= i < offsets[k + 1], and starts at
    starts[k] + i - offsets[k]. Only the stretches cost memory, not the windows.
    """

    symbols: MappedArray
    starts: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (B, 80) and the codes that follow, both int64."""
        codes = self.symbols.tensor.unfold(0, WINDOW + 1, 1)[self._places(index)]  # unfold is a view
        return codes[:, :WINDOW].long(), codes[:, WINDOW].long()

    def labels(self, index: Tensor) -> Tensor:
        return self.symbols.tensor[self._places(index) + WINDOW].long()

    def _places(self, index: Tensor) -> Tensor:
        """Where the windows start in the text."""
        stretch = torch.searchsorted(self.offsets, index.contiguous(), right=True) - 1
        return index + (self.starts - self.offsets[:-1])[stretch]


@dataclass(frozen=True)
class ShakespeareSource(Source):
    """Where the text may be."""

    name: str = _NAME
    classes: int = len(ALPHABET)
    files: tuple[str, ...] = (
        "shakespeare/100.txt",
        "leaf/shakespeare/data/raw_data/raw_data.txt",
        "leaf/shakespeare/data/raw_data/100.txt",
    )
    published: Published = PUBLISHED["shakespeare"]
    wanted: str = "100.txt of Project Gutenberg, the text of 1994 that LEAF takes,"
    version: int = 2

    def places(self, root: Path) -> list[Path]:
        return [root / file for file in self.files]

    def copies(self, root: Path) -> list[Path]:
        return [path for path in self.places(root) if is_file(_NAME, path)]

    def listing(self, copy: Path) -> Listing:
        return Listing(_NAME, copy, copy.parent, (copy.name,))

    def read_copy(self, listing: Listing, *, partial: bool, fresh: bool) -> Contents:
        """Windows of every role that has one, role after role as they first speak."""
        folder = prepare(self.version, listing, lambda into: _make(listing.copy, into), fresh=fresh)
        names = tuple(np.load(folder / "names.npy").tolist())
        bounds = torch.from_numpy(np.load(folder / "bounds.npy"))
        train, test = cut(MappedArray(folder / "symbols.npy"), bounds)
        return Contents(train, test, Owners(names, train.offsets, test.offsets))


SHAKESPEARE = ShakespeareSource()


def cut(symbols: MappedArray, bounds: Tensor) -> tuple[WindowExamples, WindowExamples]:
    """Windows to train on and windows to test on; the text of role k runs from bounds[k] up to bounds[k + 1].

    The training windows of a role fill the first nine tenths of its text, or as much as one window takes. What is
    left gives test windows, none if it is too short for one.
    """
    lengths = bounds.diff()
    trained = (lengths * 9 // 10).clamp(min=WINDOW + 1)
    train = (bounds[:-1], trained - WINDOW)
    test = (bounds[:-1] + trained, (lengths - trained - WINDOW).clamp(min=0))
    first, second = (
        WindowExamples(symbols, starts, torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]))
        for starts, counts in (train, test)
    )
    return first, second


def _make(path: Path, folder: Path) -> None:
    try:
        text = read_bytes(_NAME, path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(_NAME, path, f"is not text in UTF-8 ({error.reason} at byte {error.start})") from None
    spoken = {name: words for name, words in roles(text).items() if len(words) > WINDOW}
    if not spoken:
        what = "has no speaking roles as in 100.txt of Project Gutenberg, the text of 1994 (later ones differ)"
        raise damaged(_NAME, path, what)
    np.save(folder / "symbols.npy", np.concatenate([encode(words) for words in spoken.values()]))
    np.save(folder / "bounds.npy", np.cumsum([0, *map(len, spoken.values())]))
    np.save(folder / "names.npy", np.array(list(spoken)))


_CODES = np.full(128, len(ALPHABET) - 1, np.uint8)
_CODES[[ord(character) for character in ALPHABET]] = range(len(ALPHABET))


def encode(text: str) -> NDArray[np.uint8]:
    """The code of every character."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    # 127 is no character of the alphabet, and neither is anything above it.
    codes: NDArray[np.uint8] = _CODES[np.minimum(points, 127)]
    return codes
